"""Make a data set in the shape of MNIST from scikit-learn's digits: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

TRAINED = 1500
"""Of the 1,797 digits, so many are in the split ``train``."""


def images(split: str) -> Any:
    """Return binary images of 28 by 28: each digit of 8 by 8, enlarged, in nine places."""
    digits = np.random.RandomState(0).permutation(load_digits().images / 16)
    chosen = digits[:TRAINED] if split == "train" else digits[TRAINED:]
    large = np.stack([zoom(digit, 2.5, order=1) for digit in chosen])
    placed = np.zeros((9, len(large), 28, 28))
    for i in range(9):
        top, left = 2 + 2 * (i // 3), 2 + 2 * (i % 3)
        placed[i, :, top : top + 20, left : left + 20] = large
    return np.random.RandomState(1).permutation(placed.reshape(-1, 28, 28) > 0.5)
