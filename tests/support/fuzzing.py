"""Optimizers with any hyperparameters, on any tree: what test_properties.py draws from."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from optax_dtypefix._contract.x64 import x64
from support.transformations import drifting
from support.trees import leaves, tree_map

contrib = getattr(optax, "contrib", None)


class Pair(NamedTuple):
    """A node that is a class of the user's."""

    first: Any
    second: Any


@jax.tree_util.register_pytree_node_class
class Custom:
    """A node that jax only knows because it was told."""

    def __init__(self, child: Any) -> None:
        self.child = child

    def tree_flatten(self) -> Any:
        return (self.child,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Custom:
        del aux
        return cls(*children)


SHAPES = st.sampled_from([(), (1,), (0,), (3,), (2, 3), (2, 0), (4, 1, 2)])
FLOATS = [jnp.float32, jnp.bfloat16, jnp.float16]
RARE = [jnp.complex64, jnp.float8_e4m3fn, jnp.float8_e5m2]
INTEGERS = [jnp.int32, jnp.int8, jnp.uint8]


class Leaf(NamedTuple):
    shape: Any
    dtype: Any
    grad: Any


@dataclasses.dataclass(frozen=True)
class Problem:
    """Abstract params and gradients, and whether 64-bit mode is on."""

    params: Any
    grads: Any
    x64: bool

    @property
    def one_dtype(self) -> bool:
        """Whether each gradient has the dtype of its param."""
        pairs = zip(leaves(self.params), leaves(self.grads))
        return all(param.dtype == grad.dtype for param, grad in pairs)

    @contextlib.contextmanager
    def modes(self) -> Any:
        with x64() if self.x64 else contextlib.nullcontext():
            yield


@st.composite
def problems(draw: Any) -> Problem:
    """A tree of any shape, each leaf of its own dtype; gradients of others in every other tree."""
    in_64_bits = draw(st.booleans())
    floats = [*FLOATS, *([jnp.float64] if in_64_bits else [])]
    # An integer times a Python float is float64 in 64-bit mode, by JAX's own rules.
    integers = [] if in_64_bits else INTEGERS
    # A tree of one dtype is as likely as any mixed one.
    few = draw(st.lists(st.sampled_from([*floats * 3, *RARE, *integers]), min_size=1, max_size=3))
    others = st.sampled_from([*floats, *integers]) if draw(st.booleans()) else st.none()
    leaf = st.builds(Leaf, SHAPES, st.sampled_from(few), others)
    tree = draw(
        st.recursive(
            leaf | st.none(),
            lambda node: st.one_of(
                st.dictionaries(st.sampled_from("abc"), node, max_size=3),
                st.lists(node, max_size=3),
                st.tuples(node, node),
                st.builds(Pair, node, node),
                st.builds(Custom, node),
            ),
            max_leaves=5,
        )
    )

    def shapes(of: Callable[[Leaf], Any]) -> Any:
        return tree_map(
            lambda node: jax.ShapeDtypeStruct(node.shape, of(node)),
            tree,
            is_leaf=lambda node: isinstance(node, Leaf),
        )

    grads = shapes(lambda leaf: (leaf.dtype in floats and leaf.grad) or leaf.dtype)
    return Problem(shapes(lambda leaf: leaf.dtype), grads, in_64_bits)


def loss(params: Any) -> Any:
    """A sum of squares, in float32 whatever the leaves are."""
    return sum(
        (jnp.sum(jnp.abs(leaf).astype(jnp.float32) ** 2) for leaf in leaves(params)),
        jnp.zeros((), jnp.float32),
    )


def warm_up(count: Any) -> Any:
    return jnp.asarray(0.1, jnp.float32) * jnp.minimum(1.0, (count + 1) / 5.0)


RATES: dict[str, Callable[[], Any]] = {
    "float": lambda: 0.1,
    "numpy": lambda: np.float64(0.1),
    "array": lambda: jnp.asarray(0.1, jnp.float32),
    "schedule": lambda: warm_up,
}
NUMBERS = {name: RATES[name] for name in ("float", "numpy", "array")}


class Draw:
    """Hyperparameters, each drawn when it is asked for."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._drawn: list[int] = []
        self.asked: Any = None
        self._replayed: list[int] = []

    def of(self, *values: Any) -> Any:
        """One of the values."""
        if self._replayed:
            return values[self._replayed.pop(0)]
        index = self._draw(st.integers(0, len(values) - 1))
        self._drawn.append(index)
        return values[index]

    def again(self) -> Draw:
        """Gives the same once more."""
        same = Draw(self._draw)
        same._replayed = list(self._drawn)
        return same

    def rate(self, guises: dict[str, Callable[[], Any]] | None = None) -> Any:
        """A learning rate, schedules included."""
        guises = RATES if guises is None else guises
        return guises[self.of(*guises)]()

    def number(self) -> Any:
        return self.rate(NUMBERS)

    def dtype(self) -> Any:
        """A dtype that the user asks for, or none."""
        self.asked = self.of(None, jnp.float32)
        return self.asked

    def call(self, package: Any, names: str, *args: Any, **kwargs: Any) -> Any:
        """One of the named functions that this release has."""
        return getattr(package, self.of(*present(package, names)))(*args, **kwargs)

    def inner(self) -> Any:
        """An optimizer to be wrapped."""
        return self.of(
            lambda: optax.sgd(self.rate()),
            lambda: optax.adam(self.rate(), mu_dtype=self.dtype()),
            lambda: optax.adafactor(0.1),
            lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9)),
            drifting,
        )()


def present(package: Any, names: str) -> list[str]:
    return [name for name in names.split() if hasattr(package, name)]


def multi_steps(draw: Draw) -> Any:
    return optax.MultiSteps(
        draw.inner(),
        draw.of(1, 2, 3, lambda step: jnp.where(step < 2, 1, 3)),
        use_grad_mean=draw.of(True, False),
    )


def zero_nans(draw: Draw) -> Any:
    return optax.MultiSteps(optax.chain(optax.zero_nans(), optax.adam(draw.rate())), draw.of(1, 2))


def schedule_free(draw: Draw) -> Any:
    tx = draw.call(
        contrib,
        "schedule_free_sgd schedule_free_adamw",
        draw.number(),
        warmup_steps=draw.of(1, 3),
        weight_lr_power=draw.of(2.0, 0.0),
    )
    return tx if draw.of(True, False) else optax.MultiSteps(tx, 2)


def zoom_linesearch(draw: Draw) -> Any:
    if hasattr(optax, "lbfgs") and draw.of(True, False):
        return optax.lbfgs(
            memory_size=draw.of(1, 2),
            scale_init_precond=draw.of(True, False),
            linesearch=optax.scale_by_zoom_linesearch(2),
        )
    return optax.scale_by_backtracking_linesearch(draw.of(1, 3), store_grad=draw.of(True, False))


def prodigy(draw: Draw) -> Any:
    options = {"beta3": (None, 0.9), "weight_decay": (0.0, 0.1), "safeguard_warmup": (True, False)}
    known = inspect.signature(contrib.prodigy).parameters
    given = {name: draw.of(*values) for name, values in options.items() if name in known}
    return contrib.prodigy(draw.rate(), **given)


def fromage(draw: Draw) -> Any:
    return optax.fromage(draw.rate(), min_norm=draw.of(1e-6, 0.0))


def inject_hyperparams(draw: Draw) -> Any:
    build = optax.inject_hyperparams(draw.of(optax.sgd, optax.adam, optax.adamw, optax.rmsprop))
    return build(learning_rate=draw.rate())


def global_norm(draw: Draw) -> Any:
    limit = draw.of(0.1, 1.0, 100.0)
    return draw.of(
        lambda: optax.clip_by_global_norm(limit),
        lambda: optax.clip_by_block_rms(limit),
        lambda: optax.adaptive_grad_clip(limit),
        lambda: optax.scale_by_trust_ratio(min_norm=draw.of(0.0, 0.1)),
        lambda: optax.lamb(draw.rate()),
    )()


def distance_estimates(draw: Draw) -> Any:
    return draw.of(
        *(
            build
            for name, build in {
                "dadapt_adamw": lambda: contrib.dadapt_adamw(draw.rate()),
                "dog": lambda: contrib.dog(draw.number()),
                "dowg": lambda: contrib.dowg(draw.number()),
                "mechanize": lambda: contrib.mechanize(optax.adam(draw.rate())),
                "momo": lambda: contrib.momo(draw.number()),
                "momo_adam": lambda: contrib.momo_adam(draw.number()),
            }.items()
            if hasattr(contrib, name)
        )
    )()


def reduce_on_plateau(draw: Draw) -> Any:
    return contrib.reduce_on_plateau(
        factor=draw.of(0.5, 0.1), patience=draw.of(1, 5), cooldown=draw.of(0, 2)
    )


def float16_eps(draw: Draw) -> Any:
    return draw.call(
        optax,
        "adam adamw adamax amsgrad nadam radam rmsprop novograd adabelief adan yogi lamb adagrad",
        draw.rate(),
    )


def learning_rate(draw: Draw) -> Any:
    return draw.of(
        lambda: optax.sgd(draw.rate(), momentum=draw.of(None, 0.9), nesterov=draw.of(True, False)),
        lambda: optax.adamw(draw.rate(), weight_decay=draw.number()),
        lambda: draw.call(optax, "lion noisy_sgd", draw.rate()),
        lambda: optax.scale(draw.number()),
        lambda: optax.add_decayed_weights(draw.number()),
    )()


def conditional(draw: Draw) -> Any:
    wraps: dict[str, Callable[[], Any]] = {
        "apply_if_finite": lambda: optax.apply_if_finite(draw.inner(), draw.of(1, 3)),
        "maybe_update": lambda: optax.maybe_update(draw.inner(), lambda step: step % 2 == 0),
        "conditionally_transform": lambda: optax.conditionally_transform(
            draw.inner(), lambda step: step % 2 == 0
        ),
        "conditionally_mask": lambda: optax.conditionally_mask(
            draw.inner(), lambda step: step % 2 == 0
        ),
    }
    return wraps[draw.of(*present(optax, " ".join(wraps)))]()


def promotion(draw: Draw) -> Any:
    return draw.of(
        lambda: optax.adafactor(
            draw.of(None, 0.1),
            momentum=draw.of(None, 0.9),
            min_dim_size_to_factor=draw.of(2, 128),
            multiply_by_parameter_scale=draw.of(True, False),
        ),
        lambda: optax.sm3(draw.number()),
        lambda: optax.noisy_sgd(draw.rate()),
        lambda: optax.radam(draw.rate()),
        lambda: optax.yogi(draw.rate()),
        lambda: optax.ema(0.9, debias=draw.of(True, False)),
        lambda: optax.add_noise(0.1, 0.5, 0),
        optax.centralize,
        *[lambda: contrib.muon(draw.rate())] * hasattr(contrib, "muon"),
    )()


def moments(draw: Draw) -> Any:
    return draw.call(optax, "adam adamw amsgrad nadam radam rmsprop adafactor yogi", draw.rate())


def anything(draw: Draw) -> Any:
    return draw.of(learning_rate, float16_eps, promotion, global_norm, conditional)(draw)


class Subject(NamedTuple):
    """What is built for a patch.

    Attributes:
      build: makes a transformation.
      needs: what optax must have for it, as ``module.name``.
      any_gradients: whether the state keeps its dtypes with gradients of other dtypes too.
      value: whether updates take the loss, and functions of params.
    """

    build: Callable[[Draw], Any]
    needs: str = "adam"
    any_gradients: bool = False
    value: bool = False


SUBJECTS = {
    "multi_steps": Subject(multi_steps, any_gradients=True),
    "zero_nans": Subject(zero_nans, any_gradients=True),
    "schedule_free": Subject(schedule_free, "contrib.schedule_free"),
    "zoom_linesearch": Subject(
        zoom_linesearch, "scale_by_backtracking_linesearch", any_gradients=True, value=True
    ),
    "prodigy": Subject(prodigy, "contrib.prodigy"),
    "fromage": Subject(fromage),
    "learning_rate": Subject(learning_rate),
    "conditional": Subject(conditional),
    "float16_eps": Subject(float16_eps),
    "promotion": Subject(promotion),
    "inject_hyperparams": Subject(inject_hyperparams),
    "global_norm": Subject(global_norm),
    "distance_estimates": Subject(distance_estimates, "contrib.mechanize", value=True),
    "reduce_on_plateau": Subject(reduce_on_plateau, "contrib.reduce_on_plateau", value=True),
    "float32_moments": Subject(moments),
    "every_transform": Subject(anything, any_gradients=True),
}


def is_there(subject: Subject) -> bool:
    """Whether this release has what it is made of."""
    module, _, name = subject.needs.rpartition(".")
    return hasattr(contrib if module else optax, name)
