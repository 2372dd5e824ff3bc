"""Count the Python calls that a call makes into the shim: a figure that no other load changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optax_dtypefix
from support.recorded import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = (str(Path(optax_dtypefix.__file__).parent), str(ROOT / "patches"))


def calls_into_the_shim(function: Callable[[], Any]) -> list[str]:
    """Call a function, and name the functions of the shim that run."""
    calls: list[str] = []

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls.append(frame.f_code.co_name)

    profile = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(profile)
    return calls
