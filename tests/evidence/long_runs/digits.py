"""Softmax regression on scikit-learn's digits: the problem of the long runs, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

STEPS, BATCH = 3000, 64
FEATURES, CLASSES = 64, 10
SIZE = FEATURES * CLASSES + CLASSES


def images() -> tuple[Any, Any]:
    """Return images, as 64 numbers from 0 to 1 each, and one-hot labels."""
    pixels, labels = load_digits(return_X_y=True)
    return pixels / 16, np.eye(CLASSES)[labels]


def batches() -> Any:
    """Return the indices of the images of each step."""
    return np.random.default_rng(0).integers(0, 1797, size=(STEPS, BATCH))


def start() -> Any:
    """Return the initial params: 64 rows of weights and one of biases, as one vector."""
    return 0.1 * np.random.default_rng(1).normal(size=SIZE)


def loss_and_gradient(params: Any, x: Any, y: Any) -> tuple[float, Any]:
    """Return the loss and its gradient, derived by hand, in float64."""
    weights, biases = params[: FEATURES * CLASSES].reshape(FEATURES, CLASSES), params[-CLASSES:]
    logits = x @ weights + biases
    logits -= logits.max(1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    slope = (np.exp(log_probabilities) - y) / len(x)
    gradient = np.concatenate([(x.T @ slope).ravel(), slope.sum(0)])
    return float(-(y * log_probabilities).sum(1).mean()), gradient
