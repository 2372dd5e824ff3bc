"""The cases that the test file of each patch declares for the tests that all patches share.

``tests/patches/test_<id>.py`` defines ``FUZZ`` and ``PROGRAMS``. Nothing else lists them.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jax.numpy as jnp
import optax

from optax_dtypefix._engine.release import Release

if TYPE_CHECKING:
    from types import ModuleType

    from support.fuzzing import Draw

TEST_FILES = Path(__file__).parents[1] / "patches"


class FuzzCase(NamedTuple):
    """A transformation with any hyperparameters, for test_properties.py.

    Attributes:
      build: draws hyperparameters and builds the transformation.
      needs: a function of optax that the transformation needs; ``contrib.name`` for one in contrib.
      any_gradients: whether the state also keeps its dtypes if gradients differ from the params.
      takes_value: whether ``update`` takes the loss, and functions of the params.
    """

    build: Callable[[Draw], Any]
    needs: str = "adam"
    any_gradients: bool = False
    takes_value: bool = False

    def is_in_release(self) -> bool:
        """Whether the installed optax has the transformation."""
        module, _, name = self.needs.rpartition(".")
        return hasattr(getattr(optax, module, None) if module else optax, name)


class Program(NamedTuple):
    """A transformation of which the patch must not change something, for test_programs.py.

    Attributes:
      build: builds the transformation, after the patch was applied.
      dtype: of the params and gradients.
      releases: PEP 440 specifiers of the releases with the transformation.
      same: what is identical with and without the patch. ``"program"``: what JAX gives XLA.
        ``"compiled"``: what XLA makes of that. ``"bits"``: only the results, because the program
        fixes a value elsewhere. ``"state"``: only the classes, fields and shapes of the state,
        because stock is wrong here.
    """

    build: Callable[[], Any]
    dtype: Any = jnp.float32
    releases: str = ""
    same: str = "program"


@functools.cache
def module_of(patch_id: str) -> ModuleType:
    """Import the test file of a patch, also where pytest does not run."""
    name = f"test_{patch_id}"
    spec = importlib.util.spec_from_file_location(name, TEST_FILES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    # In `sys.modules`, where the engine finds the names that it has to rebind.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fuzz_case(patch_id: str) -> FuzzCase:
    """Return the fuzz case of a patch."""
    case: FuzzCase = declared_in(patch_id, "FUZZ")
    return case


def declared_in(patch_id: str, name: str) -> Any:
    """Return what the test file of a patch declares.

    Raises:
      LookupError: there is no such file, or the file has no such name.
    """
    file = TEST_FILES / f"test_{patch_id}.py"
    if not file.exists():
        raise LookupError(f"{file} is missing: each patch has a test file with FUZZ and PROGRAMS")
    try:
        return getattr(module_of(patch_id), name)
    except AttributeError:
        raise LookupError(f"{file} has no {name}: declare it as test_fromage.py does") from None


def programs(patch_id: str) -> dict[str, Program]:
    """Return the programs of a patch that the installed optax has."""
    release = Release(optax.__version__)
    declared: dict[str, Program] = declared_in(patch_id, "PROGRAMS")
    return {name: case for name, case in declared.items() if release.within(case.releases)}
