"""Share the data, the network and the verdict: scikit-learn's digits and a small network."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits


def load(dtype):
    """Return 1437 (images, labels) to train on, and 360 to test on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = jnp.asarray(images[order] / 16, dtype)
    labels = jnp.asarray(labels[order], jnp.int32)
    return (images[:1437], labels[:1437]), (images[1437:], labels[1437:])


def batches(data, size, seed):
    """Return one epoch in random order: images (batches, size, 64) and labels (batches, size)."""
    images, labels = data
    count = len(labels) // size
    order = np.random.default_rng(seed).permutation(len(labels))[: count * size]
    return images[order].reshape(count, size, -1), labels[order].reshape(count, size)


def init(dtype, sizes=(64, 64, 10)):
    """Return a network of dense layers with relu in between."""
    keys = jax.random.split(jax.random.PRNGKey(0), len(sizes) - 1)
    return [
        {
            "w": jax.random.normal(key, (fan_in, fan_out), dtype) * (2 / fan_in) ** 0.5,
            "b": jnp.zeros((fan_out,), dtype),
        }
        for key, fan_in, fan_out in zip(keys, sizes, sizes[1:])
    ]


def logits(params, images):
    """Compute log-probabilities of the ten digits, not normalized, in float32 or wider."""
    *hidden, last = params
    for layer in hidden:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    scores = images @ last["w"] + last["b"]
    return scores.astype(jnp.promote_types(scores.dtype, jnp.float32))


def loss(params, images, labels):
    """Compute the mean cross-entropy."""
    log_probabilities = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


def accuracy(params, images, labels):
    """Compute the share of images that are recognized."""
    return float((logits(params, images).argmax(axis=1) == labels).mean())


def finish(params, test, at_least, trouble=""):
    """Print the result; exit with 1 if the accuracy is below the bar, or on other trouble."""
    reached = accuracy(params, *test)
    print(f"test loss {float(loss(params, *test)):.4f}, accuracy {reached:.3f}")
    if not reached >= at_least:
        trouble = trouble or f"accuracy is below {at_least}"
    if trouble:
        sys.exit(f"training went wrong: {trouble}")
