"""Stand in for data sets of text: Python's own documentation, a token for each character."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

Batch = dict[str, np.ndarray]
NUM_CHARS = 128
TESTED = 10
"""One of so many topics is in the split ``test``."""


def texts(split: str) -> list[str]:
    """Return the texts of one split, in ASCII."""
    chosen = (i for i in range(len(topics)) if (i % TESTED == 0) == (split == "test"))
    every = [topics[name] for name in sorted(topics)]
    return [every[i].encode("ascii", "replace").decode() for i in chosen]


def load(split: str, *, batch_size: int, sequence_length: int) -> Iterator[dict[str, Any]]:
    """Yield batches as ``examples/rnn/dataset.py`` of dm-haiku does: time first."""
    tokens = np.frombuffer("".join(texts(split)).encode(), np.uint8).astype(np.int32)
    random = np.random.RandomState(0)
    while True:
        starts = random.randint(0, len(tokens) - sequence_length - 1, batch_size)
        rows = tokens[starts + np.arange(sequence_length + 1)[:, None]]
        yield {"input": rows[:-1], "target": rows[1:]}


def decode(tokens: Any) -> str:
    """Return the text of tokens."""
    return "".join(map(chr, tokens))
