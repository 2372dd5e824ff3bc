"""Make any transformation keep its dtypes, from the outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dtypes import PyTree, strip_weak_type
from .kinds import promote_initial_state
from .state import cast_back
from .updates import cast_updates
from .wrong_arguments import refuse_no_transformation

if TYPE_CHECKING:
    import optax


def preserve_dtypes(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Make any transformation keep the dtypes of its state, and limit those of its updates.

    Every leaf of the state keeps its shape, dtype and weak type, so that a train step compiles
    once, scans and checkpoints. No float is cast back to an integer, and no complex number to a
    real one: such a leaf starts in the wider kind, or stays as ``tx`` makes it.

    An update that is wider than its gradient, its param and the state that ``tx`` keeps for that
    param is cast to the widest of these three, and never below. Float64 arithmetic inside ``tx``
    stays, and precision that is lost inside ``tx`` stays lost.

    Args:
      tx: anything with ``init`` and ``update``.

    Returns:
      An ``optax.GradientTransformationExtraArgs`` with the state of ``tx``. Extra arguments are
      passed on, except to a plain ``optax.GradientTransformation``, which takes none. Before optax
      0.1.5, which has no extra arguments, an ``optax.GradientTransformation``.

    Raises:
      TypeError: ``tx`` is something else, such as `optax.adam`, which has to be called first.
    """
    import optax

    refuse_no_transformation("preserve_dtypes({})", tx)
    kind = getattr(optax, "GradientTransformationExtraArgs", optax.GradientTransformation)
    inner: Any = tx
    if isinstance(tx, optax.GradientTransformation) and kind is not optax.GradientTransformation:
        inner = optax.with_extra_args_support(tx)  # Stock's own accepts none: they are dropped.

    def init_fn(params: PyTree) -> PyTree:
        state = promote_initial_state(inner.update, inner.init(params), params)
        return strip_weak_type(state, numbers_too=True)

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        new_updates, new_state = inner.update(updates, state, params, **extra_args)
        return cast_updates(new_updates, updates, params, state), cast_back(new_state, state)

    return kind(init_fn, update_fn)
