"""Find the functions of optax that build what the door lifts."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

import optax

import optax_dtypefix
from optax_dtypefix._engine.locate import find
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches.wrapped import BUILDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def layers(builder: str) -> Iterator[tuple[str, str]]:
    """Yield the patch and the releases of each layer of a builder."""
    for layer in BUILDERS[builder]:
        where, _, releases = layer.partition(" ")
        yield where.partition(":")[0].partition(".")[0], releases


def builders(patch_id: str) -> dict[str, Any]:
    """Return the functions whose transformations a patch lifts on the installed release."""
    release = Release(optax.__version__)
    acting = [
        name
        for name in BUILDERS
        if any(patch == patch_id and release.within(r) for patch, r in layers(name))
    ]
    return {name: function for name in acting if (function := function_named(name))}


def function_named(name: str) -> Any:
    """Return the public or private function of optax with this name, or None."""
    with contextlib.suppress(ImportError):
        importlib.import_module("optax.contrib")
    modules = sorted(module for module in sys.modules if module.partition(".")[0] == "optax")
    return next(filter(None, (find(module, name) for module in modules)), None)


def stock_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds what stock's builds."""

    def build(*args: Any, **kwargs: Any) -> Any:
        with optax_dtypefix.disabled():
            return function(*args, **kwargs)

    return build
