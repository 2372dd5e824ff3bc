"""What the table of programs says of each, and how a copy of a program is changed."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CAST = '__import__("param_dtype").cast'
"""What casts the initial params. It stands in the copy of each program."""

COMPUTE = '__import__("param_dtype").compute'
"""What casts params and inputs for the forward pass, where the program has no setting for it."""

NUMBER = r"(-?[\d.]+(?:e[-+]\d+)?|nan|inf)"
"""What matches a printed loss."""

ANY = "…"
"""In a text to change: any text, as little as fits."""

WAYS = {
    "float32": ("float32", "float32", "off"),
    "bfloat16 compute": ("float32", "bfloat16", "off"),
    "stock": ("bfloat16", "bfloat16", "off"),
    "with the import": ("bfloat16", "bfloat16", "on"),
}
"""For each way to train: the dtypes of the params and of the forward pass, and OPTAX_DTYPEFIX."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A public program.

    Attributes:
      name: for the command and the record.
      about: the model and the optimizer.
      clone: the folder of its clone, and the name in ``CLONES``.
      file: what runs.
      changes: for each file, texts, and what stands there in the copy.
      seed: a text that stands once in these files or arguments. Each run has its own number there.
      loss: matches each loss that the program prints.
      last: so many of them count.
      arguments: of its command line.
      seeds: the number of runs in each way.
      computes: whether its forward pass is in bfloat16 where its params are.
      best: 1 if lower is better, -1 for a reward.
    """

    name: str
    about: str
    clone: str
    file: str
    changes: Mapping[str, Mapping[str, str]]
    seed: str
    loss: str
    last: int
    arguments: tuple[str, ...] = ()
    seeds: int = 2
    computes: bool = False
    best: int = 1

    @property
    def ways(self) -> list[str]:
        """The ways in which it is trained."""
        return [way for way in WAYS if self.computes or way != "bfloat16 compute"]

    def reseeded(self, text: str, index: int) -> str:
        """Return a text with the seed of a run. The first is the program's own."""
        return text.replace(
            self.seed, re.sub(r"\d+", lambda seed: f"{int(seed[0]) + index}", self.seed)
        )

    def copies(self, originals: Mapping[str, str], index: int) -> Iterator[tuple[str, str]]:
        """Yield the name and the changed text of each changed file.

        Raises:
          ValueError: a text to change does not stand once in a file, nor does the seed in all.
        """
        texts = {name: changed(name, originals[name], of) for name, of in self.changes.items()}
        found = sum(text.count(self.seed) for text in (*texts.values(), *self.arguments))
        if found != 1:
            raise ValueError(f"{self.name} has the seed {self.seed!r} {found} times, not once")
        return ((name, self.reseeded(text, index)) for name, text in texts.items())


def changed(name: str, text: str, changes: Mapping[str, str]) -> str:
    """Return the text of a file with its changes."""
    for before, after in changes.items():
        pattern = re.escape(before).replace(re.escape(ANY), ".*?")
        text, found = re.subn(pattern, lambda _, of=after: of, text, flags=re.DOTALL)
        if found != 1:
            raise ValueError(
                f"{name} has {before!r} {found} times, not once: check out the listed revision"
            )
    return text


def code_of(name: str, text: str) -> str:
    """Return the code of a file: of a notebook, its cells."""
    if not name.endswith(".ipynb"):
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
