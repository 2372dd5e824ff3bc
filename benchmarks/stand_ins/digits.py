"""Make a data set in the shape of MNIST from scikit-learn's digits: nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINED = 1500
"""Of the 1,797 digits, so many are in the split ``train``."""


def images(split: str) -> Any:
    """Return binary images of 28 by 28."""
    return labelled(split)[0] > 0.5


def labelled(split: str) -> tuple[Any, Any]:
    """Return gray images of 28 by 28, and labels: each digit of 8 by 8, enlarged, in nine places.

    Their values are 0 to 1.
    """
    found = load_digits()
    order = np.random.RandomState(0).permutation(len(found.target))
    chosen = order[:TRAINED] if split == "train" else order[TRAINED:]
    large = np.stack([zoom(digit, 2.5, order=1) for digit in found.images[chosen] / 16])
    placed = np.zeros((9, len(large), 28, 28))
    for i in range(9):
        top, left = 2 + 2 * (i // 3), 2 + 2 * (i % 3)
        placed[i, :, top : top + 20, left : left + 20] = large
    order = np.random.RandomState(1).permutation(9 * len(large))
    return placed.reshape(-1, 28, 28)[order], np.tile(found.target[chosen], 9)[order]


def batches(batch_size: int) -> Iterator[Any]:
    """Yield shuffled images of the split ``train``, with values of -1 to 1."""
    scaled = (2 * labelled("train")[0] - 1)[..., None].astype(np.float32)
    for chosen in _shuffled(len(scaled), batch_size):
        yield scaled[chosen]


def colored(batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Yield shuffled images and labels in the shape of CIFAR10: 3 by 32 by 32."""
    gray, labels = labelled("train")
    padded = np.pad(2 * gray - 1, ((0, 0), (2, 2), (2, 2)), constant_values=-1)
    wide = np.repeat(padded[:, None], 3, axis=1).astype(np.float32)
    for chosen in _shuffled(len(wide), batch_size):
        yield wide[chosen], labels[chosen]


def mnist(*_: Any) -> dict[str, tuple[Any, Any]]:
    """Return images of float32 and labels of both splits, as numpyro loads them."""
    both = {split: labelled(split) for split in ("train", "test")}
    return {split: (found.astype(np.float32), labels) for split, (found, labels) in both.items()}


def _shuffled(length: int, batch_size: int) -> Iterator[Any]:
    random = np.random.RandomState(2)
    while True:
        order = random.permutation(length)
        for start in range(0, length - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
