"""What is known of a function's parameters, also after the function was changed in place."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from optax_dtypefix._contract.signatures import parameters_of, positional_names


def build(rate: Any, decay: float = 0.1, *, mu_dtype: Any = None) -> Any:
    """Stand for a function of optax."""


def other(rate: Any, mask: Any = None) -> Any:
    """Stand for the function after a reload."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__defaults__", (0.5,)),
        ("__kwdefaults__", {"mu_dtype": "float32"}),
        ("__code__", other.__code__),
        ("__signature__", inspect.signature(other)),
    ],
    ids=["defaults", "keyword defaults", "code", "signature"],
)
def test_a_function_that_is_changed_in_place_is_read_again(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython reloads functions in this way."""
    assert parameters_of(build).signature == inspect.signature(build)
    monkeypatch.setattr(build, name, value, raising=False)
    assert parameters_of(build).signature == inspect.signature(build)
    monkeypatch.undo()
    assert parameters_of(build) == parameters_of(build)
    assert parameters_of(build).signature == inspect.signature(build)


def test_defaults_of_a_wrapped_function_are_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(build)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return build(*args, **kwargs)

    assert parameters_of(wrapper).signature.parameters["decay"].default == 0.1
    monkeypatch.setattr(build, "__defaults__", (0.5,))
    assert parameters_of(wrapper).signature.parameters["decay"].default == 0.5


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
