"""Look the functions up that files use, and print those with faults."""

from __future__ import annotations

import dataclasses
import gc
from typing import TYPE_CHECKING, Any

from ..._environment import CHECK_FAILED
from ...patches.releases import TESTED
from .files import files_in, parse
from .functions import KINDS, added_by, faults_of
from .names import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..._engine.release import Release
    from .names import Use as Call

_HALF = ("bfloat16", "float16")
_OF_ARRAYS = "array hyperparameters"
_MOMENTS = "bfloat16_moments"
_IF_HALF = f"{KINDS[0]} if "
"""How a kind begins that depends on what an argument is: the dtype of moments."""
_KINDS_OF = {
    **{dtype: (dtype, _OF_ARRAYS) for dtype in _HALF},
    **dict.fromkeys(("float64", "int64", "uint64"), ("64-bit mode",)),
    "complex64": ("complex numbers",),
    "complex128": ("complex numbers", "64-bit mode"),
}


def kinds_of(dtypes: Sequence[str]) -> set[str]:
    """Return the kinds of problems in which params of these dtypes are."""
    kinds = {KINDS[0], *(kind for dtype in dtypes for kind in _KINDS_OF.get(dtype, ()))}
    if any("int" in dtype for dtype in dtypes):
        kinds.add("integers")
    return kinds if len(dtypes) < 2 else {*kinds, "mixed dtypes", "gradients wider than params"}


@dataclasses.dataclass(frozen=True)
class Use:
    """A function with faults, and where it is used.

    Attributes:
      file: the file.
      place: the line, such as ``31``, or ``cell 3:2`` in a notebook.
      function: its path, such as ``optax.contrib.prodigy``.
      arguments: those that add faults, such as ``momentum`` of ``optax.sgd``.
      faults: by release and patch, the kinds of problems in which the function has faults.
    """

    file: str
    place: str
    function: str
    arguments: list[str]
    faults: dict[str, dict[str, list[str]]]

    def is_in(self, kinds: set[str]) -> bool:
        """Whether the function has faults in one of these kinds of problems."""
        patches = (patch for faults in self.faults.values() for patch in faults.values())
        return any(kind in kinds or _is_of_moments(kind) for patch in patches for kind in patch)

    def __str__(self) -> str:
        releases: dict[str, list[str]] = {}
        for release, faults in self.faults.items():
            releases.setdefault(_described(faults), []).append(release)
        # What has faults comes first: not all releases can have none.
        parts = [text.format(", ".join(on)) for text, on in sorted(releases.items())]
        call = ", ".join(f"{argument}=" for argument in self.arguments)
        function = f"{self.function}({call})" if call else self.function
        return f"{self.file}:{self.place}: {function}: faults {'; '.join(parts)}"


def _described(faults: dict[str, list[str]]) -> str:
    if not faults:
        return "none on {}"
    found = {kind for kinds in faults.values() for kind in kinds}
    kinds = [kind for kind in (*KINDS, *sorted(found.difference(KINDS))) if kind in found]
    kinds = kinds[:1] if KINDS[0] in found else kinds
    return f"in {', '.join(kinds)} on {{}} ({', '.join(faults)})"


@dataclasses.dataclass
class Scan:
    """What was found.

    Attributes:
      releases: of optax.
      files: the number of files.
      uses: of functions that have faults on one of the releases.
      unresolved: places that use optax in a way that is not followed.
      unparsed: files, or cells of a notebook, that are not Python, and why.
      unread: the number of files of which nothing could be parsed.
      dtypes: how many files that mention optax name each float dtype; float32 if they name none.
      only: the dtypes whose faults were looked for; all if empty.
    """

    releases: Sequence[Release]
    files: int
    uses: list[Use]
    unresolved: list[str]
    unparsed: list[str]
    unread: int
    dtypes: dict[str, int]
    only: Sequence[str] = ()

    @property
    def verdict(self) -> int:
        """What the command exits with: 0 if no function has faults, and all could be parsed."""
        if self.uses:
            return 1
        return CHECK_FAILED if self.unread == self.files else 2 if self.unparsed else 0

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**dataclasses.asdict(self), "releases": [str(release) for release in self.releases]}

    def as_text(self) -> str:
        """Return a line for each use and each file that cannot be parsed, and the summary.

        What is wrong in the dtype that most files use comes first.
        """
        usual = max(self.dtypes, key=self.dtypes.__getitem__, default="float32")
        kinds = kinds_of([usual])
        uses = sorted(self.uses, key=lambda use: not use.is_in(kinds))
        lines = [*map(str, uses), *self._summary()]
        count = sum(use.is_in(kinds) for use in uses)
        if count < len(uses) and not self.only:
            which = f"The first {count} of {len(uses)} uses have" if count else "No use has"
            lines.insert(0, f"{which} faults in {usual}, which most files use (--dtype {usual}).")
        untested = (
            f"optax {release} is not a tested release: {TESTED[0]} to {TESTED[-1]} are. The table "
            f"may be wrong for it."
            for release in self.releases
            if not release.tested
        )
        return "\n".join([*untested, *lines])

    def _summary(self) -> Iterator[str]:
        yield from (f"{place}: not parsed" for place in self.unparsed)
        if self.verdict == CHECK_FAILED:
            yield "No Python file or notebook could be read."
        elif not self.dtypes and not self.unparsed:
            yield "No file mentions optax."
        if self.unresolved:
            count, first = len(self.unresolved), self.unresolved[0]
            yield f"Not followed, such as getattr(optax, name): {count}. The first: {first}"
        first, *more = (
            f"{len({use.file for use in self.uses if use.faults[str(release)]})}{{}} {release}"
            for release in self.releases
        )
        files = f" of {self.files} files use functions with faults on optax"
        counts = [first.format(files), *(count.format(" on") for count in more)]
        advice = " `check FILE:FACTORY` tries one optimizer." if self.uses else ""
        yield f"{', '.join(counts)}.{advice}"


def scan(paths: Sequence[str], releases: Sequence[Release], dtypes: Sequence[str] = ()) -> Scan:
    """Look for functions with faults in files and folders.

    Args:
      paths: of files and folders.
      releases: of optax.
      dtypes: of params; faults in others do not count. If empty, all faults count.

    Raises:
      FileNotFoundError: there is no such file or folder.
    """
    files = list(dict.fromkeys(files_in(paths)))
    kinds = kinds_of(dtypes) if dtypes else set(KINDS)
    found = Scan(releases, len(files), [], [], [], 0, {}, dtypes)
    gc.disable()  # Syntax trees have no cycles, and are built in half the time.
    for file in files:
        parsed = parse(file)
        names = names_in(parsed.tree)
        found.unparsed.extend(f"{file}: {problem}" for problem in parsed.problems)
        found.unresolved.extend(f"{file}:{parsed.place(n)}" for n in sorted(names.unresolved))
        for call in sorted(names.uses, key=lambda use: use[:2]):
            arguments, faults = _of_call(call, releases, kinds)
            if any(faults.values()):
                found.uses.append(Use(file, parsed.place(call.line), call.path, arguments, faults))
        for dtype in parsed.dtypes:
            found.dtypes[dtype] = found.dtypes.get(dtype, 0) + 1
        found.unread += bool(parsed.problems) and not parsed.tree.body
    gc.enable()
    return found


def _of_call(
    call: Call, releases: Sequence[Release], kinds: set[str]
) -> tuple[list[str], dict[str, dict[str, list[str]]]]:
    """Look a call up: which of its arguments add faults, and by release all of its faults."""
    # Other libraries call ``apply_updates``.
    path = call.path if call.path.startswith("optax.") else "optax.apply_updates"
    kinds = kinds.difference([_OF_ARRAYS] if call.is_literal else [])

    def faults(*arguments: str) -> dict[str, dict[str, list[str]]]:
        return {str(release): _faults(path, release, kinds, arguments) for release in releases}

    passed = added_by(path, call.given)
    adding = [each for each in passed if faults(each) != faults()]
    found = faults(*adding)
    for name, is_half in sorted(call.moments):
        if name == "dtype_momentum" and "momentum" not in passed:
            continue
        kind = KINDS[0] if is_half else f"{_IF_HALF}{name} is half precision"
        has_moments = [
            release
            for release in releases
            if "bfloat16" in faults_of(path, release, passed).get(_MOMENTS, ())
        ]
        for release in has_moments:
            found[str(release)].setdefault(_MOMENTS, []).append(kind)
        adding += [name] * bool(name and has_moments)
    return list(dict.fromkeys(adding)), found


def _is_of_moments(kind: str) -> bool:
    return kind.startswith(_IF_HALF)


def _faults(
    path: str, release: Release, kinds: set[str], arguments: Sequence[str]
) -> dict[str, list[str]]:
    """Look a function up: by patch, in which of these kinds of problems it has faults."""
    every = faults_of(path, release, arguments).items()
    found = {patch: [kind for kind in mine if kind in kinds] for patch, mine in every}
    return {patch: mine for patch, mine in found.items() if mine}
