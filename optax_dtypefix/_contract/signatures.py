"""Read the parameters of a function once: reading them takes longer than building adam."""

from __future__ import annotations

import inspect
import operator
import weakref
from types import FunctionType, MethodType
from typing import Any, Callable

_KNOWN: weakref.WeakKeyDictionary[FunctionType, tuple[tuple[object, ...], Parameters]]
_KNOWN = weakref.WeakKeyDictionary()


class Parameters:
    """The parameters of a function.

    Attributes:
      signature: of the function.
      positional: names of the parameters that may be given by position.
      of_dtypes: names of the parameters that are dtypes, as ``mu_dtype``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.positional = [name for name, p in parameters.items() if p.kind in by_position]
        self.of_dtypes = [name for name in parameters if "dtype" in name.split("_")]


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Return the parameters of a function, such as one of stock."""
    plain = _unwrapped(function) if hasattr(function, "__wrapped__") else function
    if type(plain) is not FunctionType:
        return Parameters(function)
    # What a reload in IPython, or another patch, may replace in a function.
    keywords: dict[str, Any] = plain.__kwdefaults__ or {}
    signature = getattr(plain, "__signature__", None)
    made_of = (plain.__code__, plain.__defaults__, signature, *keywords.values())
    before, found = _KNOWN.get(plain, ((), None))
    if found is None or len(before) != len(made_of) or not all(map(operator.is_, before, made_of)):
        found = Parameters(plain)
        _KNOWN[plain] = made_of, found
    return found


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    # A bound method has the __wrapped__ of its function, which also takes self.
    plain: Callable[..., Any] = inspect.unwrap(
        function, stop=lambda f: type(f) is MethodType or hasattr(f, "__signature__")
    )
    return plain


def positional_names(function: Callable[..., Any]) -> list[str]:
    """List the names of the parameters that may be given by position or by name."""
    plain = _unwrapped(function) if hasattr(function, "__wrapped__") else function
    if type(plain) is FunctionType and not hasattr(plain, "__signature__"):
        code = plain.__code__
        return list(code.co_varnames[code.co_posonlyargcount : code.co_argcount])
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
