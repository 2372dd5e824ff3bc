"""The optimizers in float64 numpy, written from the papers, on params that are one vector.

Each function takes the initial params and returns a step, which maps params, gradients and loss to
the update and the scalar statistics. ``store`` rounds arrays of the state, because users choose
their precision; scalars are never rounded. On its own run a reference rounds nothing.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

Step = Callable[[Any, Any, float], "tuple[Any, dict[str, Any]]"]
Store = Callable[[str, Any], Any]

EPS, B1, B2 = 1e-8, 0.9, 0.999


def exactly(_: str, array: Any) -> Any:
    return array


class Adam:
    """Kingma and Ba, https://arxiv.org/abs/1412.6980; the bias is corrected."""

    def __init__(self, size: int, store: Store) -> None:
        self.m, self.v, self.k, self.store = np.zeros(size), np.zeros(size), 0, store

    def __call__(self, g: Any) -> Any:
        self.k += 1
        m, v = B1 * self.m + (1 - B1) * g, B2 * self.v + (1 - B2) * g**2
        self.m, self.v = self.store("mu", m), self.store("nu", v)
        return m / (1 - B1**self.k) / (np.sqrt(v / (1 - B2**self.k)) + EPS)


def adam(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    direction = Adam(x0.size, store)

    def step(_: Any, g: Any, __: float) -> Any:
        update = -rate * direction(g)
        return update, {"sum of nu": direction.v.sum()}

    return step


def nadam(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    """Dozat, https://openreview.net/pdf?id=OM0jvwB8jIp57ZJjtNEZ."""
    moments = Adam(x0.size, store)

    def step(_: Any, g: Any, __: float) -> Any:
        moments(g)
        k = moments.k
        ahead = B1 * moments.m / (1 - B1 ** (k + 1)) + (1 - B1) * g / (1 - B1**k)
        return -rate * ahead / (np.sqrt(moments.v / (1 - B2**k)) + EPS), {}

    return step


def amsgrad(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    """Reddi et al., https://openreview.net/forum?id=ryQu7f-RZ."""
    moments, largest = Adam(x0.size, store), np.zeros(x0.size)

    def step(_: Any, g: Any, __: float) -> Any:
        nonlocal largest
        moments(g)
        largest = np.maximum(largest, moments.v / (1 - B2**moments.k))
        return -rate * moments.m / (1 - B1**moments.k) / (np.sqrt(largest) + EPS), {}

    return step


def adabelief(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    """Zhuang et al., https://arxiv.org/abs/2010.07468."""
    m, s, k, eps = np.zeros(x0.size), np.zeros(x0.size), 0, 1e-16

    def step(_: Any, g: Any, __: float) -> Any:
        nonlocal m, s, k
        k += 1
        exact_m = B1 * m + (1 - B1) * g
        exact_s = B2 * s + (1 - B2) * (g - exact_m) ** 2 + eps
        m, s = store("mu", exact_m), store("nu", exact_s)
        return -rate * exact_m / (1 - B1**k) / (np.sqrt(exact_s / (1 - B2**k)) + eps), {}

    return step


def rmsprop(x0: Any, store: Store = exactly, *, rate: float, decay: float) -> Step:
    """Tieleman and Hinton, lecture 6.5 of "Neural Networks for Machine Learning"."""
    v = np.zeros(x0.size)

    def step(_: Any, g: Any, __: float) -> Any:
        nonlocal v
        exact = decay * v + (1 - decay) * g**2
        v = store("nu", exact)
        return -rate * g / np.sqrt(exact + EPS), {"sum of nu": exact.sum()}

    return step


def adafactor(_: Any, store: Store = exactly, *, rate: float, shapes: Any) -> Step:
    """Shazeer and Stern, https://arxiv.org/abs/1804.04235, without clipping and param scale."""
    (rows, columns), (rest,) = shapes
    row, column, v, k = np.zeros(columns), np.zeros(rows), np.zeros(rest), 0

    def step(_: Any, g: Any, __: float) -> Any:
        nonlocal row, column, v, k
        k += 1
        decay = 1 - k**-0.8
        matrix, vector = g[: rows * columns].reshape(rows, columns), g[rows * columns :]
        square = matrix**2 + 1e-30
        exact_row = decay * row + (1 - decay) * square.mean(0)
        exact_column = decay * column + (1 - decay) * square.mean(1)
        exact_v = decay * v + (1 - decay) * (vector**2 + 1e-30)
        row, column, v = (
            store(name, array)
            for name, array in (("v_row", exact_row), ("v_col", exact_column), ("v", exact_v))
        )
        moment = exact_column[:, None] * exact_row / exact_row.mean()
        update = np.concatenate([(matrix / np.sqrt(moment)).ravel(), vector / np.sqrt(exact_v)])
        return -rate * update, {"v_row": exact_row, "v_col": exact_column, "v": exact_v}

    return step


def lamb(x0: Any, store: Store = exactly, *, rate: float, parts: Any) -> Step:
    """You et al., https://arxiv.org/abs/1904.00962."""
    direction = Adam(x0.size, store)

    def step(x: Any, g: Any, _: float) -> Any:
        update = direction(g)
        for part in parts:
            length, of_params = np.linalg.norm(update[part]), np.linalg.norm(x[part])
            update[part] *= of_params / length if length and of_params else 1.0
        return -rate * update, {}

    return step


def clipped_sgd(_: Any, __: Store = exactly, *, rate: float, limit: float, scale: float) -> Step:
    """Pascanu et al., https://arxiv.org/abs/1211.5063, on gradients of a scaled loss."""

    def step(_: Any, g: Any, __: float) -> Any:
        norm = np.linalg.norm(g)
        factor = min(1.0, limit * scale / norm) / scale
        return -rate * factor * g, {"norm of update": rate * factor * norm}

    return step


def sgd_on_plateau(
    _: Any, __: Store = exactly, *, rate: float, size: int, patience: int, factor: float
) -> Step:
    """The rate falls when the mean of some losses has not fallen for some means."""
    scale, best, bad, mean, seen = 1.0, np.inf, 0, 0.0, 0

    def step(_: Any, g: Any, loss: float) -> Any:
        nonlocal scale, best, bad, mean, seen
        mean, seen = (seen * mean + loss) / (seen + 1), seen + 1
        if seen == size:
            better = mean < (1 - 1e-4) * best
            best, bad = (mean, 0) if better else (best, bad + 1)
            if bad == patience:
                scale, bad = scale * factor, 0
            mean, seen = 0.0, 0
        return -rate * scale * g, {"scale": scale, "best_value": best, "avg_value": mean}

    return step


def dog(x0: Any, _: Store = exactly, *, rate: float, initial: float) -> Step:
    """Ivgi et al., https://arxiv.org/abs/2302.12022."""
    distance, total = initial * (1 + np.linalg.norm(x0)), 0.0

    def step(x: Any, g: Any, _: float) -> Any:
        nonlocal distance, total
        distance = max(distance, np.linalg.norm(x - x0))
        total += g @ g
        update = -rate * distance / np.sqrt(total + EPS) * g
        return update, {"max_dist": distance, "sum_sq_norm_grads": total}

    return step


def dowg(x0: Any, _: Store = exactly, *, rate: float) -> Step:
    """Khaled et al., https://arxiv.org/abs/2305.16284."""
    square, total = 1e-4, 0.0

    def step(x: Any, g: Any, _: float) -> Any:
        nonlocal square, total
        square = max(square, (x - x0) @ (x - x0))
        total += square * (g @ g)
        update = -rate * square / (np.sqrt(total) + 1e-4) * g
        return update, {"estim_sq_dist": square, "weighted_sq_norm_grads": total}

    return step


def dadapt_adamw(x0: Any, store: Store = exactly) -> Step:
    """Defazio and Mishchenko, https://arxiv.org/abs/2301.07733."""
    m, v, s = np.zeros((3, x0.size))
    d, r, k, beta3 = 1e-6, 0.0, 0, B2**0.5

    def step(_: Any, g: Any, __: float) -> Any:
        nonlocal m, v, s, d, r, k
        k += 1
        rate = d * np.sqrt(1 - B2**k) / (1 - B1**k)
        r = beta3 * r + (1 - beta3) * rate * (g @ (s / (np.sqrt(v) + EPS)))
        exact_m = B1 * m + (1 - B1) * rate * g
        exact_v = B2 * v + (1 - B2) * g**2
        exact_s = beta3 * s + (1 - beta3) * rate * g
        d = max(d, r / ((1 - beta3) * np.abs(exact_s).sum()))
        m, v, s = (
            store("exp_avg", exact_m),
            store("exp_avg_sq", exact_v),
            store("grad_sum", exact_s),
        )
        update = -exact_m / (np.sqrt(exact_v) + EPS)
        return update, {"estim_lr": d, "numerator_weighted": r}

    return step


def prodigy(x0: Any, store: Store = exactly, *, d0: float) -> Step:
    """Mishchenko and Defazio, https://arxiv.org/abs/2306.06101."""
    m, v, s = np.zeros((3, x0.size))
    d, r, k, beta3 = d0, 0.0, 0, B2**0.5

    def step(x: Any, g: Any, _: float) -> Any:
        nonlocal m, v, s, d, r, k
        k += 1
        rate = d * np.sqrt(1 - B2**k) / (1 - B1**k)
        r = beta3 * r + d / d0 * rate * (g @ (x0 - x))
        exact_m = B1 * m + (1 - B1) * d * g
        exact_v = B2 * v + (1 - B2) * (d * g) ** 2
        exact_s = beta3 * s + rate * d * g / d0
        d = max(d, r / np.abs(exact_s).sum())
        m, v, s = (
            store("exp_avg", exact_m),
            store("exp_avg_sq", exact_v),
            store("grad_sum", exact_s),
        )
        update = -rate * exact_m / (np.sqrt(exact_v) + d * EPS)
        return update, {"estim_lr": d, "numerator_weighted": r}

    return step


def momo(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    """Schaipp et al., https://arxiv.org/abs/2305.07583."""
    m, mean, gamma, k = np.zeros(x0.size), 0.0, 0.0, 0

    def step(x: Any, g: Any, loss: float) -> Any:
        nonlocal m, mean, gamma, k
        beta = B1 if k else 0.0
        k += 1
        mean = beta * mean + (1 - beta) * loss
        gamma = beta * gamma + (1 - beta) * (g @ x)
        exact = beta * m + (1 - beta) * g
        m = store("exp_avg", exact)
        gap, square = max(mean - gamma + exact @ x, 0.0), exact @ exact
        update = -min(rate, gap / square if square > np.finfo(np.float32).eps else 0.0) * exact
        return update, {"barf": mean, "gamma": gamma}

    return step


def momo_adam(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    """The same paper, preconditioned as in Adam."""
    m, v, mean, gamma, k = np.zeros(x0.size), np.zeros(x0.size), 0.0, 0.0, 0

    def step(x: Any, g: Any, loss: float) -> Any:
        nonlocal m, v, mean, gamma, k
        k += 1
        mean = B1 * mean + (1 - B1) * loss
        gamma = B1 * gamma + (1 - B1) * (g @ x)
        exact_m, exact_v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        m, v = store("exp_avg", exact_m), store("exp_avg_sq", exact_v)
        scaled = exact_m / (EPS + np.sqrt(exact_v / (1 - B2**k)))
        gap, square = max(mean - gamma + exact_m @ x, 0.0), exact_m @ scaled
        length = gap / square if square > np.finfo(np.float32).eps else 0.0
        return -min(rate / (1 - B1**k), length) * scaled, {"barf": mean, "gamma": gamma}

    return step


def mechanic(x0: Any, _: Store = exactly, *, rate: float, initial: float) -> Step:
    """Cutkosky et al., https://arxiv.org/abs/2306.00144, around SGD."""
    betas = 1 - 0.1 ** np.arange(1.0, 7)
    r, m, v, s = np.zeros(6), np.zeros(6), np.zeros(6), np.full(6, initial)

    def step(x: Any, g: Any, _: float) -> Any:
        nonlocal r, m, v, s
        decay = 0.01 * s.sum() * np.linalg.norm(g) / (np.linalg.norm(x) + EPS)
        moved = (x0 - x) / (s.sum() + EPS)
        h = (g + decay * x) @ moved
        clipped = np.clip(h, -m, m)
        m = np.maximum(betas * m, abs(h) + EPS)
        v = betas**2 * v + h**2
        r = betas * r + clipped * s
        s = (initial / 6 * m + np.maximum(r, 0)) / (np.sqrt(v) + EPS)
        update = x0 - s.sum() * (moved + rate * g) - x
        return update, {"r": r, "m": m, "v": v, "s": s}

    return step


def schedule_free_sgd(x0: Any, store: Store = exactly, *, rate: float) -> Step:
    """Defazio et al., https://arxiv.org/abs/2405.15682."""
    z, total = x0, 0.0

    def step(y: Any, g: Any, _: float) -> Any:
        nonlocal z, total
        total += rate**2
        average = (y - (1 - B1) * z) / B1
        z = store("z", z - rate * g)
        average = average + rate**2 / total * (z - average)
        return B1 * average + (1 - B1) * z - y, {"weight_sum": total, "max_lr": rate, "b1": B1}

    return step
