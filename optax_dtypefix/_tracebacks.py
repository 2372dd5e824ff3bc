"""Take our frames out of the traceback of an error that stock or the user's code raised."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from . import patches
from ._logging import LOGGER

if TYPE_CHECKING:
    from types import TracebackType

_FOLDERS = tuple(os.path.join(os.path.dirname(str(f)), "") for f in (__file__, patches.__file__))
_CALLED_BY_US = frozenset(
    {"collections", "contextlib", "dataclasses", "functools", "inspect", "jax", "numpy"}
)


def hide_our_frames(error: BaseException) -> None:
    """Shorten the traceback of an error that passes through our code, but for the frame that asks.

    What is left leads from the user's line to the one in stock optax that raised. Where our own
    code raised, or a library in a call from our code, our last frames stay. All of them stay if
    the logger shows ``debug``, for who reports a fault of ours.
    """
    if error.__traceback__ is None or LOGGER.isEnabledFor(logging.DEBUG):
        return
    first, *entries = _list_entries(error.__traceback__)
    ours = [entry.tb_frame.f_code.co_filename.startswith(_FOLDERS) for entry in entries]
    others = [i for i, is_ours in enumerate(ours) if not (is_ours or _is_library(entries[i]))]
    end = others[-1] if others else 0
    remaining = [entry for i, entry in enumerate(entries) if i >= end or not ours[i]]
    for entry, following in zip([first, *remaining], remaining):
        entry.tb_next = following


def _list_entries(entry: TracebackType | None) -> list[TracebackType]:
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _is_library(entry: TracebackType) -> bool:
    name = str(entry.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] in _CALLED_BY_US
