"""Read the parameters of a function."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any, Callable


@functools.cache
def is_of_dtype(name: str) -> bool:
    """Check whether a parameter is a dtype, by its name."""
    return "dtype" in name.split("_")


def positional_names(function: Callable[..., Any]) -> list[str]:
    """List the names of the parameters that may be given by position or by name."""
    # A bound method has the __wrapped__ of its function, which also takes self.
    plain = inspect.unwrap(
        function, stop=lambda f: type(f) is MethodType or hasattr(f, "__signature__")
    )
    if type(plain) is FunctionType and not hasattr(plain, "__signature__"):
        code = plain.__code__  # A signature takes longer to read than adam to build.
        return list(code.co_varnames[code.co_posonlyargcount : code.co_argcount])
    parameters = inspect.signature(plain).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
