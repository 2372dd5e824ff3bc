"""Stand in for TensorFlow Datasets: digits in place of binarized MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import digits
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Dataset:
    """The part of a data set that the program uses: each method returns the data set."""

    def __init__(self, images: Any) -> None:
        self._images = images[..., None]

    def shuffle(self, buffer_size: int, seed: int) -> _Dataset:
        del buffer_size  # All images are shuffled.
        self._random = np.random.RandomState(seed)
        return self

    def batch(self, size: int) -> _Dataset:
        self._size = size
        return self

    def prefetch(self, buffer_size: int) -> _Dataset:
        del buffer_size  # All are in memory.
        return self

    def repeat(self) -> _Dataset:
        return self

    def as_numpy_iterator(self) -> Iterator[dict[str, Any]]:
        while True:
            images = self._random.permutation(self._images)
            for start in range(0, len(images) - self._size + 1, self._size):
                yield {"image": images[start : start + self._size]}


def load(_: str, split: str) -> _Dataset:
    """Return one split."""
    return _Dataset(digits.images(split))
