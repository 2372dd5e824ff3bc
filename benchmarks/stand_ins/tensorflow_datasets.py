"""Stand in for TensorFlow Datasets: digits in place of MNIST, and text in place of lm1b."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import characters
import digits
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


class Split:
    """The names of splits."""

    TRAIN = "train"
    TEST = "test"


class _Dataset:
    """The part of a data set that programs use: each method returns the data set."""

    def __init__(self, images: Any) -> None:
        self._images = images[..., None]

    def shuffle(self, buffer_size: int, seed: int = 0) -> _Dataset:
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


def load(name: str, split: str, **_: Any) -> _Dataset:
    """Return one split."""
    if name == "binarized_mnist":
        return _Dataset(digits.images(split))
    return _Dataset((255 * digits.labelled(split)[0]).astype(np.uint8))


def as_numpy(dataset: _Dataset) -> Iterator[dict[str, Any]]:
    """Return what yields batches."""
    return dataset.as_numpy_iterator()


def data_source(_: str, split: str) -> list[dict[str, str]]:
    """Return the texts of one split."""
    return [{"text": text} for text in characters.texts(split)]
