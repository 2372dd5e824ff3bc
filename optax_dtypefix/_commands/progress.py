"""Show a progress bar on a terminal, with tqdm if it is installed."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the numbers of finished and of all items, such as checks."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield _print_count
        print(file=sys.stderr)
        return
    with tqdm(unit=f" {unit}") as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


def _print_count(done: int, total: int) -> None:
    print(f"\r{done} of {total}", end="", file=sys.stderr, flush=True)
