"""Which parameters of a function may be given by position."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from optax_dtypefix._contract.signatures import positional_names


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Adam:
    @logged
    def update(self, grads: Any, state: Any, params: Any = None) -> Any:
        """Take ``self`` from the object."""

    @classmethod
    @logged
    def of_class(cls, grads: Any, state: Any) -> Any:
        """Take ``cls`` from the class."""


class Everything:
    """Has every attribute, as a mock."""

    def __getattr__(self, name: str) -> Any:
        if name in {"__signature__", "__text_signature__"}:
            raise AttributeError(name)
        return self

    def __call__(self, grads: Any, state: Any) -> Any:
        """Take gradients and state."""


def test_a_bound_method_takes_no_self() -> None:
    assert positional_names(Adam().update) == ["grads", "state", "params"]
    assert positional_names(logged(Adam().update)) == ["grads", "state", "params"]
    assert positional_names(Adam.of_class) == ["grads", "state"]


def test_an_object_that_wraps_itself_raises_instead_of_hanging() -> None:
    with pytest.raises(ValueError, match="wrapper loop"):
        positional_names(Everything())
