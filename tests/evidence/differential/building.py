"""Build what a spec describes: the transformation, its params and gradients.

Stock, patched and reference workers all import this module. In the reference, ``exact`` is the
dtype of every number, and of the dtypes that the user asks for.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evidence.audit import cases as audited
from evidence.differential import third_party

tree_map = jax.tree_util.tree_map
Spec = dict[str, Any]


def exact_dtype(dtype: Any, exact: str = "float64") -> Any:
    parts = 1 + bool(jnp.issubdtype(dtype, np.complexfloating))
    bits = int(exact[-2:]) * parts
    return np.dtype(f"{'complex' if parts == 2 else 'float'}{bits}")


def _values(rng: Any, shape: Any, dtype: Any, scale: float, *, zeros: bool, near: Any) -> Any:
    """Return random numbers of a dtype; with ``near``, other numbers near them."""
    if jnp.issubdtype(dtype, np.integer):
        limit = 1 if dtype == np.int8 else 3
        return rng.integers(-limit, limit + 1, shape).astype(np.float64)
    values = rng.normal(size=shape) * scale
    if jnp.issubdtype(dtype, np.complexfloating):
        values = values + 1j * rng.normal(size=shape) * scale
    if zeros:
        values = values * (rng.random(shape) < 0.7)
    return rounded(values * (1 + 0.05 * near.normal(size=shape)) if near else values, dtype)


def rounded(values: Any, dtype: Any) -> Any:
    """Round values to a dtype, so that all workers start from the same numbers."""
    return np.asarray(values).astype(dtype).astype(exact_dtype(dtype))


class Problem:
    """Params, gradients and extra arguments of all steps.

    Args:
      spec: the drawn example.
      exact: dtype of all leaves in the reference; else empty.
      nudges: for each leaf, the relative size of random errors in its values.
      run: seed of these errors.
    """

    def __init__(self, spec: Spec, *, exact: str, nudges: Any = None, run: int = 0) -> None:
        self.spec, self.exact = spec, exact
        self.nudge = min(max(nudges), float(np.finfo(np.float32).eps)) if nudges else 0.0
        self.run = run
        self.treedef = third_party.NODES[spec["node"]]
        self._params, self._grads = [], []
        for i, leaf in enumerate(spec["leaves"]):
            rng = np.random.default_rng([spec["seed"], i])
            near = np.random.default_rng([spec["near"], i]) if spec.get("near") else None
            error = np.random.default_rng([run, i])
            shape, param, grad = (leaf["shape"], jnp.dtype(leaf["param"]), jnp.dtype(leaf["grad"]))
            batch = [2, *shape] if spec["per_example"] else shape

            def off(shape: Any, error: Any = error, size: Any = nudges and nudges[i]) -> Any:
                return 1 + size * error.choice([-1.0, 1.0], shape) if size else 1

            def drawn(*given: Any, zeros: bool, rng: Any = rng, near: Any = near) -> Any:
                return _values(rng, *given, zeros=zeros, near=near)

            point, off_point = drawn(shape, param, 1.0, zeros=False), off(shape)
            self._params.append([])
            self._grads.append([])
            for t in range(spec["steps"]):
                self._params[-1].append(self._array(point * off_point, param))
                if not jnp.issubdtype(param, np.integer):
                    point = rounded(point + drawn(shape, param, 0.1, zeros=False), param)
                scale = 0.0 if t == spec["zero_step"] else spec["scale"]
                values = drawn(batch, grad, scale, zeros=spec["zeros"]) * (scale != 0)
                self._grads[-1].append(self._array(values * off(batch), grad))

    def _array(self, values: Any, dtype: Any) -> Any:
        return jnp.asarray(
            np.asarray(values), exact_dtype(dtype, self.exact) if self.exact else dtype
        )

    def params(self, step: int) -> Any:
        return self.treedef([leaf[step] for leaf in self._params])

    def grads(self, step: int) -> Any:
        return self.treedef([leaf[step] for leaf in self._grads])

    def extra_args(self, step: int) -> dict[str, Any]:
        names = audited._EXTRA_ARGS.get(self.spec["name"].rpartition(".")[2], ())
        dtype = self.exact or "float32"
        every = {
            **dict.fromkeys(("value", "loss"), jnp.asarray(2.0 + 0.5 * step, dtype)),
            **dict.fromkeys(("value_fn", "obj_fn"), _loss),
            "grad": self.grads(step),
        }
        return {name: every[name] for name in names}


def _loss(params: Any) -> Any:
    leaves = jax.tree_util.tree_leaves(params)
    return sum(jnp.sum(jnp.square(jnp.abs(leaf * 1.0))) for leaf in leaves)


public_transformations = functools.cache(audited.public_transformations)


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """Return all tested transformations by name: those of optax and those of third parties."""
    own = {f"third_party.{name}": function for name, function in third_party.ALL.items()}
    public = public_transformations()
    return {**{name: public[name] for name in public if name not in WRAPPERS}, **own}


def value(encoded: Any, *, exact: str) -> Any:
    """Return an argument that JSON encodes."""
    if not isinstance(encoded, dict):
        return encoded
    ((kind, of),) = encoded.items()
    if kind == "dtype":
        return exact_dtype(of, exact) if exact else jnp.dtype(of)
    if kind == "numpy":
        return np.float64(of)
    number = jnp.asarray(np.float32(of), exact or "float32")
    return number if kind == "array" else lambda count: number * (1 + count)


def _even(step: Any) -> Any:
    return step % 2 == 0


def _matrices(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.ndim == 2, tree)


def _base(spec: Spec, arguments: dict[str, Any]) -> Any:
    name = spec["name"].rpartition(".")[2]
    function = functions()[spec["name"]]
    if name in ("scale_by_muon", "stateless_with_tree_map", "named_chain", "lookahead"):
        return audited._special_builders()[spec["name"]](function)
    made = function(**arguments)
    return made(learning_rate=0.1) if name.startswith("inject_") else made


def _injected(spec: Spec, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    function = functions()[spec["name"]]
    if "learning_rate" not in arguments or spec["name"] not in public_transformations():
        factory = audited._with_rate(lambda: _base(spec, arguments))
        return optax.inject_hyperparams(factory, **options)(learning_rate=0.1)
    numbers = (int, float, np.ndarray, jax.Array)
    static = tuple(
        key
        for key, given in arguments.items()
        if isinstance(given, bool) or not (isinstance(given, numbers) or key == "learning_rate")
    )
    return optax.inject_hyperparams(function, static_args=static, **options)(**arguments)


WRAPPERS: dict[str, tuple[Any, ...]] = {
    "MultiSteps": (2,),
    "apply_if_finite": (3,),
    "inject_hyperparams": (),
    "contrib.schedule_free": (0.1,),
    "contrib.mechanize": (),
    "contrib.sam": (optax.sgd(0.01),),
    "flatten": (),
    "contrib.split_real_and_imaginary": (),
    "conditionally_transform": (_even,),
    "conditionally_mask": (_even,),
    "maybe_update": (_even,),
    "masked": (_matrices,),
    "chain": (optax.scale(0.5),),
    "multi_transform": (_matrices,),
}
"""The wrappers in which transformations are tested, and their other arguments."""


def _wrapped(spec: Spec, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    name = spec["wrapper"]
    if name == "inject_hyperparams":
        return _injected(spec, arguments, options)
    tx: Any = _base(spec, arguments)
    if name == "multi_transform":
        tx = {True: tx, False: optax.sgd(0.1)}
    return public_transformations()[name](tx, *WRAPPERS[name], **options)


def _nudged(arguments: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """Return the arguments with random errors as large as those of float32 scalars."""
    sign = np.random.default_rng([problem.run, 99]).choice

    def nudge(number: Any) -> Any:
        return number * (1 + problem.nudge * sign([-1.0, 1.0]))

    def each(given: Any) -> Any:
        if isinstance(given, tuple) and all(isinstance(of, float) for of in given):
            return tuple(map(nudge, given))
        return nudge(given) if isinstance(given, float) else given

    return {key: each(given) for key, given in arguments.items()}


def transformation(problem: Problem) -> Any:
    """Return the transformation of a spec, inside its wrapper."""
    spec, exact = problem.spec, problem.exact
    third_party.DTYPES = [leaf["param"] for leaf in spec["leaves"]] if exact else None
    known = inspect.signature(functions()[spec["name"]]).parameters
    arguments = dict(audited.required(functions()[spec["name"]])) if "args" not in known else {}
    arguments.update({key: value(of, exact=exact) for key, of in spec["arguments"].items()})
    options = {key: value(of, exact=exact) for key, of in spec["options"].items()}
    if problem.nudge:
        defaults = {key: p.default for key, p in known.items() if p.default is not p.empty}
        arguments = _nudged({**defaults, **arguments}, problem)
    return _wrapped(spec, arguments, options) if spec["wrapper"] else _base(spec, arguments)
