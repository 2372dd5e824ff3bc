"""Read the parameters of a function once: ``inspect`` takes ten times as long as to build adam."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from types import FunctionType
from typing import Any, Callable, NamedTuple

_KNOWN: weakref.WeakKeyDictionary[Any, Parameters] = weakref.WeakKeyDictionary()


class Parameters(NamedTuple):
    """The parameters of a function.

    Attributes:
      signature: of the function.
      positional: names of the parameters that may be given by position.
      of_dtypes: names of the parameters that are dtypes, as ``mu_dtype``.
    """

    signature: inspect.Signature
    positional: tuple[str, ...]
    of_dtypes: tuple[str, ...]


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Return the parameters of a function that lives long, such as one of stock."""
    try:
        return _KNOWN[function]
    except (KeyError, TypeError):  # Not known, or cannot be a key.
        pass
    signature = inspect.signature(function)
    found = Parameters(
        signature,
        tuple(
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ),
        tuple(name for name in signature.parameters if "dtype" in name.split("_")),
    )
    with contextlib.suppress(TypeError):
        _KNOWN[function] = found
    return found


def positional_names(function: Callable[..., Any]) -> list[str]:
    """List the names of the parameters that may be given by position or by name."""
    plain = inspect.unwrap(function, stop=lambda f: hasattr(f, "__signature__"))
    if type(plain) is FunctionType and not hasattr(plain, "__signature__"):
        code = plain.__code__
        return list(code.co_varnames[code.co_posonlyargcount : code.co_argcount])
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
