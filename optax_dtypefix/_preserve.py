"""Any transformation, made to keep its dtypes from the outside."""

from __future__ import annotations

from typing import Any

from optax_dtypefix._dtypes import PyTree, hold, strengthen


def preserve_dtypes(tx: Any) -> Any:
    """A transformation that keeps the dtypes of state and updates, whatever ``tx`` does to them.

    The state keeps the shape, dtype and weak type of each leaf, so that a train step compiles once,
    scans and checkpoints; updates have the dtypes of the gradients. What ``tx`` computes inside
    stays as it is: float64 arithmetic in it, or precision that is lost in it, is not mended.

    Args:
      tx: anything with ``init`` and ``update``.

    Returns:
      An ``optax.GradientTransformationExtraArgs`` with the state of ``tx``; extra arguments are
      passed on, but to a plain ``optax.GradientTransformation``, which takes none. Before optax
      0.1.5, which has no extra arguments, an ``optax.GradientTransformation``. Each leaf that is
      held is logged once, at level info.
    """
    import optax

    kind = getattr(optax, "GradientTransformationExtraArgs", optax.GradientTransformation)
    inner = tx
    if isinstance(tx, optax.GradientTransformation) and kind is not optax.GradientTransformation:
        inner = optax.with_extra_args_support(tx)  # Stock's own takes none: they are dropped.

    def init_fn(params: PyTree) -> PyTree:
        return strengthen(inner.init(params))

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        new_updates, new_state = inner.update(updates, state, params, **extra_args)
        return (
            hold(new_updates, updates, "preserve_dtypes: updates"),
            hold(new_state, state, "preserve_dtypes: state"),
        )

    return kind(init_fn, update_fn)
