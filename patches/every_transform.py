"""every_transform (opt-in): a transformation of your own keeps the dtypes of its state.

``GradientTransformation`` is the class of every transformation, optax's or user-defined. This patch
wraps ``init`` and ``update`` while a transformation is built. The state keeps its dtypes, also
where gradients are wider than params. No update is wider than its gradient, its param and the state
kept for that param. Without the patch, a state whose numbers become wider in a step compiles the
step twice, and ``lax.scan`` refuses the state
(https://github.com/google-deepmind/optax/issues/1207). ``promotion`` does so for optax's own.

The patch is opt-in because a promoted state is not wrong: it costs memory and gains precision. The
arithmetic of a transformation does not change, only the dtypes of its results.
"""

from __future__ import annotations

import inspect
from typing import Any

from .._contract.dtypes import PyTree, strip_weak_type
from .._contract.kinds import promote_initial_state
from .._contract.state import cast_back
from .._contract.updates import cast_updates
from .._engine.patch import Stock
from .._tally import Tally


def replace(tally: Tally, _: Any, stock: Stock, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``init`` and ``update`` of each new transformation."""
    tally.reach()
    init, update = stock(cls, *args, **kwargs)
    return stock(cls, _Init(init, update), _Update(update))


class _Wrapped:
    """A wrapped function of a transformation. Wrappers of the same function are equal."""

    __wrapped__: Any

    def __init__(self, function: Any) -> None:
        # A transformation may be built from the parts of another, which are wrapped already.
        self.__wrapped__ = function.__wrapped__ if isinstance(function, _Wrapped) else function

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # Not set yet while it is unpickled.
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Wrapped) and self.__wrapped__ == other.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return f"<optax_dtypefix every_transform: {self.__wrapped__!r}>"


class _Init(_Wrapped):
    def __init__(self, function: Any, update: Any) -> None:
        super().__init__(function)
        self._update = update

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        state = self.__wrapped__(*args, **kwargs)
        params = next(iter((*args, *kwargs.values())), None)
        started = promote_initial_state(self._update, state, params)
        return strip_weak_type(started, numbers_too=True)


class _Update(_Wrapped):
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[PyTree, PyTree]:
        new_updates, new_state = self.__wrapped__(*args, **kwargs)
        given = args
        if len(args) < 2:  # Passed by the names of the user-defined function.
            given = inspect.signature(self.__wrapped__).bind(*args, **kwargs).args
        updates, state, *rest = given
        params = rest[0] if rest else kwargs.get("params")
        return cast_updates(new_updates, updates, params, state), cast_back(new_state, state)
