"""The traceback of an error of stock, or of the user's code, leads there without our frames."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import traceback
from pathlib import Path
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
import optax_dtypefix.patches
import optax_dtypefix.patches.door.lift
from support.thorough import one_of

# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")

FOLDERS = tuple(
    str(Path(str(module.__file__)).parent) for module in (optax_dtypefix, optax_dtypefix.patches)
)
AT_MOST = 2  # What looks like stock's function, and the call that takes the other frames out.

BUILD: dict[str, Callable[[], Any]] = {
    "adam": lambda: optax.adam(1e-3),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "masked": lambda: optax.masked(optax.adam(1e-3), True),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-3), 2),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(1e-3),
}


def _frames_of(function: Callable[..., Any], *args: Any) -> list[traceback.FrameSummary]:
    try:
        function(*args)
    except Exception as error:
        return list(traceback.extract_tb(error.__traceback__))
    raise AssertionError("nothing raised")


def _ours(frames: list[traceback.FrameSummary]) -> list[int]:
    return [i for i, frame in enumerate(frames) if frame.filename.startswith(FOLDERS)]


def _fails(*_: Any) -> Any:
    raise LookupError("of the user")


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("dtype", one_of(3, ["float32", "bfloat16", "float16"], 1))
@pytest.mark.parametrize("name", BUILD)
def test_an_error_of_stock_has_two_frames_of_ours_at_most(
    name: str, dtype: str, jitted: bool
) -> None:
    tx, params = BUILD[name](), {"w": jnp.ones((4, 3), dtype)}
    update = jax.jit(tx.update) if jitted else tx.update
    frames = _frames_of(update, {"w": jnp.ones(5, dtype)}, tx.init(params), params)
    assert len(_ours(frames)) <= AT_MOST
    last = max(i for i, frame in enumerate(frames) if "optax" in Path(frame.filename).parts)
    assert max(_ours(frames)) < last  # Stock's line stands last but for those of JAX.


@pytest.mark.parametrize("dtype", one_of(2, ["float32", "bfloat16"], 1))
def test_an_error_of_a_schedule_ends_at_its_line(dtype: str) -> None:
    params = {"w": jnp.ones(3, dtype)}
    tx = optax.chain(optax.trace(0.9), optax.scale_by_schedule(_fails))
    frames = _frames_of(tx.update, params, tx.init(params), params)
    assert frames[-1].name == "_fails"
    assert len(_ours(frames)) <= AT_MOST


def test_an_error_of_a_function_that_is_called_directly() -> None:
    frames = _frames_of(optax.apply_updates, {"w": jnp.ones(3)}, [jnp.ones(3)])
    assert len(_ours(frames)) <= 1


@pytest.mark.parametrize("name", ["adam", "chain", "masked", "inject_hyperparams"])
@pytest.mark.parametrize("part", ["init", "update"])
def test_wrong_arguments_are_those_of_the_function_of_stock(name: str, part: str) -> None:
    function = getattr(BUILD[name](), part)
    with pytest.raises(TypeError) as raised:
        function()
    # Python 3.9 says the name of the code, which is ours.
    name = function.__qualname__ if sys.version_info >= (3, 10) else ""
    assert f"{name}() missing " in str(raised.value)


LIBRARIES: dict[str, Callable[..., Any]] = {
    "jax": jnp.add,
    "numpy": functools.partial(np.broadcast_arrays, np.ones(2), np.ones(3)),
    "inspect": inspect.signature(lambda: 0).bind,
}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_an_error_of_ours_keeps_our_last_frames(
    monkeypatch: pytest.MonkeyPatch, library: Callable[..., Any]
) -> None:
    # A library raises for these arguments, and the fault is ours.
    monkeypatch.setattr(optax_dtypefix.patches.door.lift, "cast_back", library)
    params = {"w": jnp.ones(3, "bfloat16")}
    tx = optax.adam(1e-3)
    frames = _frames_of(tx.update, params, tx.init(params), params)
    assert "_finish" in [frames[i].name for i in _ours(frames)]


def test_the_debug_level_keeps_all_frames(caplog: pytest.LogCaptureFixture) -> None:
    params = {"w": jnp.ones((4, 3), "bfloat16")}
    tx = optax.adam(1e-3)
    with caplog.at_level(logging.DEBUG, logger="optax_dtypefix"):
        frames = _frames_of(tx.update, {"w": jnp.ones(5, "bfloat16")}, tx.init(params), params)
    assert len(_ours(frames)) > AT_MOST
