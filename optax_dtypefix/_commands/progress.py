"""A progress bar on a terminal, by tqdm where that is installed."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with what is done and what there is to do."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield _counting
        print(file=sys.stderr)
        return
    with tqdm(unit=" transformations") as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


def _counting(done: int, total: int) -> None:
    print(f"\r{done} of {total}", end="", file=sys.stderr, flush=True)
