"""The rules: a patched update is never worse than the stock one, in kind, width and value."""

from __future__ import annotations

import base64
import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

RANDOM = ("add_noise", "noisy_sgd", "dpsgd", "differentially_private_aggregate", "sophia")
"""They draw random numbers, which depend on the dtype, so there is no reference."""

DIFFERENCES = ("schedule_free", "mechanize", "sam", "lookahead", "keep_params_nonnegative")
"""Their updates are new params minus old ones, and have the rounding error of params."""

PAIRS = ("dadapt_adamw", "momo_adam", "prodigy", "mechanize", "lbfgs")
"""On stock their statistics mix real and imaginary parts, so that they go uphill or stand still.

Patched, a complex leaf is a pair of real ones: another algorithm than that of the reference.
"""

DIFFERENTIATED = ("lbfgs",)
"""They take differences of gradients: the state rounds the previous one, so this one is rounded."""

ULPS = {"half": 4, "wide": 512}
"""By how many units in the last place an update may be further off than the stock one.

One unit of float16 is 8,192 of float32. For ``b2=0.999``, ``1 - b2**t`` in float32 is off by 500.
"""

NUDGED = 4
"""The tolerance, in multiples of the change that errors of one unit in the inputs cause."""


def decoded(leaf: Any) -> Any:
    dtype, shape, content = leaf
    return jnp.dtype(dtype), np.frombuffer(base64.b64decode(content), np.complex128).reshape(shape)


def kind(dtype: Any) -> int:
    """Return the rank of a kind: bool, integer, float, complex."""
    return next(
        i
        for i, of in enumerate((np.bool_, np.integer, np.floating, np.complexfloating))
        if jnp.issubdtype(dtype, of)
    )


def width(dtype: Any) -> int:
    """Return the bits of a dtype, or of one part of a complex dtype."""
    return int(dtype.itemsize * 8 // (2 if kind(dtype) == 3 else 1))


def bound(spec: Any, i: int, stock: Any) -> Any:
    """Return the dtype that C2 allows for the update of a leaf."""
    leaf = spec["leaves"][i]
    wanted = [jnp.dtype(leaf["grad"]), jnp.dtype(leaf["param"])]
    wanted += [
        jnp.dtype(of["dtype"])
        for key, of in {**spec["arguments"], **spec["options"]}.items()
        if isinstance(of, dict) and "dtype" in of and key != "hyperparam_dtype"
    ]
    dtype = wanted[0]
    for other in wanted[1:]:
        dtype = jnp.promote_types(dtype, other)
    if kind(dtype) < 2 <= kind(stock):  # An integer param keeps the float update of stock.
        dtype = jnp.dtype(jnp.float32)
    return dtype


def expected(spec: Any, i: int, stock: Any) -> Any:
    """Return the narrower one of the stock dtype and the bound; its rounding is allowed."""
    limit = bound(spec, i, stock)
    return limit if width(limit) < width(stock) else stock


def eps(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps) if kind(dtype) >= 2 else 0.0


def of_state(spec: Any, i: int, stock: Any) -> float:
    """Return the rounding of the state of a leaf, which keeps the dtype that ``init`` gave it."""
    param = spec["leaves"][i]["param"]
    asked = [
        of["dtype"] for of in spec["arguments"].values() if isinstance(of, dict) and "dtype" in of
    ]
    return max([0.0, *(eps(jnp.dtype(d)) for d in (param, *asked) if d in stock["state"])])


def finite(outcome: Any) -> bool:
    return "error" not in outcome and all(
        np.isfinite(decoded(leaf)[1]).all() for step in outcome["steps"] for leaf in step
    )


def dtypes_broken(
    spec: Any, step: int, i: int, stock: Any, patched: Any, *, imaginary: bool
) -> list[str]:
    """Compare the dtypes of one update; ``imaginary``: the stock update has an imaginary part."""
    limit = bound(spec, i, stock)
    shown = f"step {step} leaf {i}: stock {stock}, patched {patched}, bound {limit}"
    # On stock a complex param makes the learning rate complex, and with it all updates.
    if kind(patched) < min(kind(stock), 3 if imaginary else 2):
        return [f"lower kind: {shown}"]
    if kind(patched) < 2:
        return []
    # Integers, and updates of integer params, are computed in float32.
    integer = any(kind(jnp.dtype(spec["leaves"][i][of])) < 2 for of in ("param", "grad"))
    # A difference of half-precision params is exact in float32.
    half = is_difference(spec) and width(jnp.dtype(spec["leaves"][i]["param"])) < 32
    least = 32 if half or is_integer(spec, i) else 64
    if width(patched) < min(width(stock), width(limit), least):
        return [f"narrower: {shown}"]
    if width(patched) > max(width(stock), width(limit), 32 * integer):
        return [f"wider: {shown}"]
    return []


@dataclasses.dataclass(frozen=True)
class Place:
    """A leaf of the updates of one step, the dtype it should have, and its rounding."""

    step: int
    leaf: int
    dtype: Any
    unit: float


def values_broken(
    spec: Any, place: Place, both: Any, exact: Any, off: Any, *, nudged: Any = 0.0
) -> list[str]:
    """List values that are further off than stock, which is ``off``, and than rounding."""
    stock, patched = both
    unit = place.unit
    unit *= ULPS["half" if unit > 1e-4 else "wide"]
    tolerance = unit * np.abs(exact) + NUDGED * nudged
    if kind(place.dtype) >= 2:
        tolerance = tolerance + 2 * float(jnp.finfo(place.dtype).smallest_subnormal)
    if is_difference(spec):
        tolerance = tolerance + 3 * unit  # Params are at most about 3.
    error = np.abs(patched[1] - exact)
    worst = np.unravel_index(np.argmax(error - off - tolerance), exact.shape)
    if error[worst] <= off[worst] + tolerance[worst]:
        return []
    return [
        f"value: step {place.step} leaf {place.leaf}: reference {_number(exact[worst])}, "
        f"stock {_number(stock[1][worst])} ({stock[0]}), "
        f"patched {_number(patched[1][worst])} ({patched[0]}), "
        f"error of stock {off[worst]:.1e}, tolerance {tolerance[worst]:.1e}"
    ]


def _number(value: Any) -> str:
    return f"{value:.9g}" if value.imag else f"{value.real:.9g}"


def broken(spec: Any, workers: Any) -> tuple[str, list[str]]:
    """Return the outcome of a spec, and the rules that it breaks."""
    stock, patched = workers.stock_and_patched(spec)
    if "error" in stock:
        return f"stock: {stock['error']}", wrong(spec, workers, patched)
    if not finite(stock):
        return "stock is not finite", []
    if "error" in patched:
        return "compared", [f"raises: {patched['error']}"]
    if not finite(patched):
        return "compared", ["not finite"]
    if list(map(len, stock["steps"])) != list(map(len, patched["steps"])):
        return "compared", ["number of leaves"]
    pairs = [
        [(decoded(a), decoded(b)) for a, b in zip(*both)]
        for both in zip(stock["steps"], patched["steps"])
    ]
    found = [
        text
        for step, leaves in enumerate(pairs)
        for i, ((a, x), (b, y)) in enumerate(leaves)
        for text in dtypes_broken(spec, step, i, a, b, imaginary=bool(np.any(x.imag)))
        + ([] if x.shape == y.shape else [f"shape: {x.shape} is {y.shape}"])
    ]
    if any(len(leaves) != len(spec["leaves"]) for leaves in pairs):
        return "other leaves", []
    if found or has_no_reference(spec):
        return "dtypes compared", found[:1]
    if all(np.array_equal(x, y) for leaves in pairs for (_, x), (_, y) in leaves):
        return "same bits", []
    return values(spec, workers, pairs, stock)


def is_integer(spec: Any, i: int) -> bool:
    """Whether the param is an integer: stock truncates its moments, so its values mean nothing."""
    return kind(jnp.dtype(spec["leaves"][i]["param"])) < 2


def is_difference(spec: Any) -> bool:
    return any(name in spec["name"] + spec["wrapper"] for name in DIFFERENCES)


def has_no_reference(spec: Any) -> bool:
    """Whether stock in float64 is no reference: it draws other numbers, or is wrong itself."""
    if any(spec["name"].endswith(name) for name in RANDOM):
        return True
    leaves = [[kind(jnp.dtype(leaf[of])) for of in ("param", "grad")] for leaf in spec["leaves"]]
    # From 0.2.8 on, a real accumulator loses the imaginary part of a gradient.
    if spec["wrapper"] == "MultiSteps" and any(grad == 3 > param for param, grad in leaves):
        return True
    pairs = any(name in spec["name"] + spec["wrapper"] for name in PAIRS)
    return pairs and max(map(max, leaves)) == 3


def wrong(spec: Any, workers: Any, patched: Any) -> list[str]:
    """List values that cannot be right where stock raises: 0, truncated or half lost."""
    exact = workers.reference(spec, "float64")
    if has_no_reference(spec) or not (finite(patched) and finite(exact)):
        return []
    # Half precision, and an integer state, justify large errors. In float16 any error is
    # possible, because small squares are 0.
    units = [eps(jnp.dtype(leaf[of])) for leaf in spec["leaves"] for of in ("param", "grad")]
    limit = 0.01 if max(units) < 1e-4 and min(units) > 0 else 2.0
    anything = eps(jnp.dtype(jnp.float16)) in units
    about = 3 * max(units) if is_difference(spec) else 0.0  # Params are about 1 at most.
    for step, both in enumerate(zip(patched["steps"], exact["steps"])):
        for i, (a, b) in enumerate(zip(*both)):
            (dtype, got), (_, of) = decoded(a), decoded(b)
            if got.shape != of.shape:
                return [f"shape: {of.shape} is {got.shape}"]
            worst = np.unravel_index(np.argmax(np.abs(got - of)), of.shape)
            allowed = (limit if kind(dtype) >= 2 else 0.3) * np.abs(of).max() + about
            off = np.abs(got - of)[worst] > allowed
            if off and not (anything and kind(dtype) >= 2):
                shown = f"reference {_number(of[worst])}, patched {_number(got[worst])} ({dtype})"
                return [f"wrong where stock raises: step {step} leaf {i}: {shown}"]
    return []


def values(spec: Any, workers: Any, pairs: Any, stock: Any) -> tuple[str, list[str]]:
    """Compare the values with those of the reference, if there is one."""
    # In old releases some mix float32 and float64, which jax refuses.
    wide = next((of for of in ("float64", "float32") if finite(workers.reference(spec, of))), "")
    if not wide or (wide == "float32" and any(width(a) == 64 for (a, _), _ in pairs[0])):
        return "no reference", []
    exact = workers.reference(spec, wide)
    units = [eps(expected(spec, i, pairs[0][i][0][0])) for i in range(len(spec["leaves"]))]
    # In the first step only the update has errors, in later steps the state may have them too.
    roundings = [max(unit, of_state(spec, i, stock)) for i, unit in enumerate(units)]
    if any(name in spec["name"] for name in DIFFERENTIATED):
        units = roundings = [max(roundings)] * len(units)  # All leaves share one direction.

    @functools.cache
    def nudged(later: bool) -> list[Any]:
        nudges = roundings if later else units
        runs = [workers.reference(spec, wide, nudges=nudges, run=run) for run in (1, 2)]
        return [run for run in runs if finite(run)]

    @functools.cache
    def others() -> list[Any]:
        """Run stock and reference on other numbers, not compiled: stock may be right by luck."""
        eager = {**spec, "mode": "traced"} if spec["mode"] == "jit" else spec
        specs = [{**eager, "near": near} for near in range(eager is spec, 5)]
        runs = [(workers.stock(other), workers.reference(other, wide)) for other in specs]
        return [run for run in runs if all(map(finite, run))]

    for step, leaves in enumerate(pairs):
        for i, (a, b) in enumerate(leaves):
            if is_integer(spec, i):
                continue

            def at(outcome: Any, step: int = step, i: int = i) -> Any:
                return decoded(outcome["steps"][step][i])[1]

            of = at(exact)
            place = Place(step, i, expected(spec, i, a[0]), (roundings if step else units)[i])
            off = np.abs(a[1] - of)
            found = values_broken(spec, place, (a, b), of, off)
            if found:
                moved = [0 * off, *(np.abs(at(run) - of) for run in nudged(step > 0))]
                typical = [2 * _spread(np.abs(at(x) - at(y)), of) for x, y in others()]
                off, most = np.max([off, *typical], axis=0), np.max(moved, axis=0)
                found = values_broken(spec, place, (a, b), of, off, nudged=most)
            if found:
                return "compared", found
    return "compared", []


def _spread(error: Any, exact: Any) -> Any:
    """Return the error that each element may have, in proportion to its size."""
    size = np.abs(exact)
    return np.maximum(error, error.max() * size / max(size.max(), 1e-300))
