"""The command line: its commands, options and help."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from .. import __version__
from .._diagnosis.check_command.optimizer import parse_name
from .._diagnosis.check_command.params import USUAL, parse_dtypes, parse_own
from .._diagnosis.scan.functions import faults_of
from .._engine.release import Release, version_of
from .._environment import CHECK_FAILED
from .._text import closest
from ..patches import IDS, load
from ..patches.catalogue import REMOVED
from ..patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERSION = r"\d+(\.\d+)*((a|b|rc|\.?dev|\.?post)\d*)*(\+\w+([.-]\w+)*)?"
"""A release, as in 0.2.3, 0.2.8.dev0 or 0.2.8+fork."""

_DESCRIPTION = """\
Make the installed optax dtype-preserving. In a program, `import optax_dtypefix` is enough. This
command shows which patches are applied, tests them, and patches programs that you cannot change.
"""

_EPILOG = """\
examples:
  optax-dtypefix status                     show which patches are applied here, and why
  optax-dtypefix doctor                     reproduce each fault on stock and on patched optax
  optax-dtypefix doctor multi_steps         show every detail of the faults of one patch
  optax-dtypefix check train.py:make_optimizer
                                            is my optimizer affected, and what fixes it?
  optax-dtypefix scan src/ --optax 0.2.3,0.2.8
                                            which files use functions with faults?
  optax-dtypefix run train.py --lr 0.1      run an unmodified script under the shim
  optax-dtypefix run -m my.training --json  run an unmodified module with its own options
  optax-dtypefix run --report run.json train.py   write what was applied, and what it did
  optax-dtypefix run --require run.json train.py  fail unless the same is applied again
  optax-dtypefix activate                   patch optax in every Python of this environment

environment:
  OPTAX_DTYPEFIX=off                        switch the whole shim off
  OPTAX_DTYPEFIX_DISABLE=multi_steps,...    switch patches off; `all` switches all off
  OPTAX_DTYPEFIX_ONLY=multi_steps,...       apply only these patches
  OPTAX_DTYPEFIX_ENABLE=float32_moments,... apply these opt-in patches too
  OPTAX_DTYPEFIX_STRICT=1                   raise an error if a patch cannot be applied
  OPTAX_DTYPEFIX_LOG=info                   log what is applied in one line; `debug` logs why
  OPTAX_DTYPEFIX_REPORT=run.json            write what was applied, and what it did
  OPTAX_DTYPEFIX_REQUIRE=run.json           fail unless the same is applied again
"""

_STATUS = """\
Import optax under the shim, and report for each patch whether it was applied, and why. Exit with 1
if a patch failed. To require the same patches later: `status --json > FILE`, `run --require FILE`.
"""

_DOCTOR = """\
Reproduce each fault of the installed optax on the stock and on the patched functions, in separate
processes. Show one line a patch; with PATCH, every detail of its faults, or of one of them. Run on
the CPU unless JAX_PLATFORMS is set. Exit with 1 if patched optax still has a fault, or if stock
optax does not show a fault that is listed for this release.
"""

_CHECK = """\
Check your own optimizer on stock and on patched optax, in separate processes: dtypes, values in
half precision, and which patches it needs. TARGET is a transformation, or a function that takes no
arguments and returns one. The file or module is imported, not run as __main__.
"""

_CHECK_EPILOG = """\
exit code:
  0  stock optax is fine
  1  the optimizer is affected, and the patches fix it
  2  patched optax still has a problem
  3  nothing was checked: wrong usage, or no such optimizer

if a problem stays on patched optax:
  state, updates, scan, cond  wrap your transformation: optax_dtypefix.preserve_dtypes(tx)
  float64, int64              give the constants in your code the dtypes of the leaves
  off, stalls, not finite     keep these params in float32, or use optax_dtypefix.master_weights(tx)
  apply_updates               keep a number that is alone in float32, or use master_weights(tx)
  an error                    the message has its line; or give --params like your own
  broken by the patches       report it; until then, try OPTAX_DTYPEFIX_DISABLE=PATCH

examples:
  optax-dtypefix check train.py:make_optimizer
  optax-dtypefix check my.package.training:tx --dtype bfloat16
  optax-dtypefix check train.py:tx --params "w=bfloat16[128,256],layer.b=float32[16]"
"""

_SCAN = """\
List the functions with faults that Python files and notebooks use, and in which dtypes or modes.
PATH is a file or a folder. Nothing is imported, so neither jax nor optax has to be installed.
Whether a fault matters depends on your dtypes: `check` tries one optimizer.
"""

_SCAN_EPILOG = """\
exit code:
  0  no function with faults is used
  1  functions with faults are used
  2  none is used in what was parsed; some files or cells could not be parsed
  3  nothing was scanned: wrong usage, no such file, or no file could be parsed

examples:
  optax-dtypefix scan .
  optax-dtypefix scan . --dtype float32         only what is wrong for float32 params
  optax-dtypefix scan jobs/ notebooks/report.ipynb --optax 0.2.3 --json
  optax-dtypefix scan . --optax 0.2.3,0.2.8     what would an upgrade leave?
"""

_RUN_USAGE = """\
optax-dtypefix run [-h] [-v] [--report FILE] [--require FILE] \
(SCRIPT | -m MODULE) [ARGUMENT ...]"""

_RUN = """\
Run an unmodified script or module under the shim, as `python SCRIPT ...` or `python -m MODULE ...`
does. `run` puts a folder first on PYTHONPATH; from there Python imports the shim when it starts.
Processes that the program starts inherit PYTHONPATH and are patched too, unless they start with
-I, -E or -S. SCRIPT may also be a folder or a zip archive, or - for stdin.
All arguments after SCRIPT or MODULE go to the program.

With --report, write to FILE which patches were applied and what each patch did: when optax is
imported, and again at exit. In FILE, %p stands for the process id and %h for the host; without
them, the last process that imported optax writes the file. With --require, `import optax` raises
an error if optax, jax or the patches differ from those in FILE. The error lists what differs.
"""

_ACTIVATE = """\
Write optax_dtypefix.pth, of one line, into the site-packages of this Python. From then on, every
Python of this environment imports optax_dtypefix when it starts: launchers, workers, subprocesses.
`python -S` does not read the file. The OPTAX_DTYPEFIX* variables still apply.
"""

_DEACTIVATE = """\
Remove the file that `activate` wrote, also those of older versions.
"""


_COMMANDS: dict[str, tuple[str, str, str | None, str | None]] = {
    "status": ("show which patches are applied here, and why", _STATUS, None, None),
    "doctor": ("reproduce each fault on stock and on patched optax", _DOCTOR, None, None),
    "check": ("find the patches that your own optimizer needs", _CHECK, _CHECK_EPILOG, None),
    "scan": ("list the functions with faults that files use", _SCAN, _SCAN_EPILOG, None),
    "run": ("run an unmodified script or module under the shim", _RUN, None, _RUN_USAGE),
    "activate": ("patch optax in every Python of this environment", _ACTIVATE, None, None),
    "deactivate": ("undo `activate`", _DEACTIVATE, None, None),
}
"""What help says of each: in one line, above and below its options, and how to call it."""

_VERBOSE = {
    "status": "reasons in full",
    "doctor": "one line a fault, with its messages",
    "check": "every problem, not only the first",
    "scan": "",
}
"""What -v shows of those that print JSON too."""


class _Parser(argparse.ArgumentParser):
    """Say what was probably meant. Of ``check`` and ``scan``, 2 is a verdict: they exit with 3."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is not known, as ``parse_args``: argparse would do so without the command."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error and a hint, and exit."""
        self.print_usage(sys.stderr)
        found = re.search(r"(?:choice: '|arguments: )([^' =]+)", message)
        hint = f". {self._hint(found[1])}" if found else ""
        code = CHECK_FAILED if self.prog.endswith((" check", " scan")) else 2
        self.exit(code, f"{self.prog}: error: {message}{hint}\n")

    def _hint(self, word: str) -> str:
        if self.prog.endswith(" run"):
            return f"Options of Python come first: `python {word} -m optax_dtypefix run ...`"
        meant = closest(word, [*_COMMANDS, *self._option_string_actions], cutoff=0.7)
        if word.partition(".")[0] in IDS:
            meant = f"doctor {word}"
        elif word.endswith(".py"):
            meant = f"run {word}"
        return f"Did you mean {meant!r}?" if meant else f"See `{self.prog} --help`."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments of our command.

    Raises:
      SystemExit: wrong usage, or help was asked for; the message is printed.
    """
    parser, commands = _parsers()
    if not arguments:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    options = parser.parse_args(arguments)
    if options.command == "run" and not (options.module or options.program):
        commands["run"].error("the following arguments are required: SCRIPT, or -m MODULE")
    return options


def _parsers() -> tuple[_Parser, Mapping[str, _Parser]]:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "optax-dtypefix", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw
    )
    versions = f"optax {version_of('optax')}, jax {version_of('jax')}"
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {__version__} ({versions}, Python {platform.python_version()})",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = {
        name: commands.add_parser(
            name, help=summary, description=text, epilog=epilog, usage=usage, formatter_class=raw
        )
        for name, (summary, text, epilog, usage) in _COMMANDS.items()
    }
    for name, more in _VERBOSE.items():
        made[name].add_argument("--json", action="store_true", help="print everything as JSON")
        if more:
            made[name].add_argument("-v", "--verbose", action="store_true", help=f"show {more}")
    made["doctor"].add_argument(
        "patches",
        metavar="PATCH",
        nargs="*",
        type=_patch_or_fault,
        help="such as multi_steps, or a fault: multi_steps.inner_drift",
    )
    _add_params(made["check"])
    scan, run = made["scan"], made["run"]
    scan.add_argument("paths", metavar="PATH", nargs="+", help="a file or a folder")
    scan.add_argument(
        "--optax",
        metavar="VERSION[,VERSION]",
        type=_releases,
        dest="releases",
        help="releases of optax; the installed one by default",
    )
    scan.add_argument(
        "--dtype",
        metavar="DTYPE,...",
        dest="dtypes",
        type=lambda text: [params.name for params in parse_dtypes(text)],
        default=[],
        help="list only faults of params of these dtypes",
    )
    run.allow_abbrev = False  # The options of the program are read too.
    run.add_argument("-v", "--verbose", action="store_true", help="log what is applied to stderr")
    run.add_argument("--report", metavar="FILE", help="write what was applied, and what it did")
    run.add_argument("--require", metavar="FILE", help="fail unless patches are as in FILE")
    rest = argparse.REMAINDER  # All that follows is for the program.
    run.add_argument("program", metavar="SCRIPT", nargs=rest, help="path of a Python file")
    run.add_argument("-m", metavar="MODULE", dest="module", nargs=rest, help="name of a module")
    return parser, made


def _patch_or_fault(name: str) -> str:
    patch_id, dot, _ = name.partition(".")
    if patch_id in REMOVED:
        print(f"optax-dtypefix: Patch {patch_id!r} {REMOVED[patch_id]}", file=sys.stderr)
        return ""
    known: tuple[str, ...] = IDS
    if dot and patch_id in IDS:
        known = tuple(f"{patch_id}.{fault.id}" for fault in load(patch_id).faults)
    if name not in known:
        what, lists = ("patch", "status") if known is IDS else ("fault", f"doctor {patch_id}")
        function = name.removeprefix("optax.")
        patches = faults_of(f"optax.{function}", Release(TESTED[-1], tested=True))
        advice = f"Patches of {function}: {', '.join(patches)}." if patches else ""
        near = closest(name.lower(), known, cutoff=0.5)
        hint = advice or (
            f"Did you mean {near!r}?" if near else f"To list them, run `optax-dtypefix {lists}`."
        )
        raise argparse.ArgumentTypeError(f"Unknown {what} {name!r}. {hint}")
    return name


def _releases(text: str) -> list[Release]:
    # Also as pip and git write them: optax==0.2.3, v0.2.3.
    versions = [re.sub(r"^(optax)?(==|v)", "", "".join(word.split())) for word in text.split(",")]
    for version in versions:
        if not re.fullmatch(_VERSION, version):
            raise argparse.ArgumentTypeError(
                f"{version!r} is no release of optax. Write each in full, as in 0.2.3,{TESTED[-1]}"
            )
    return [Release(version, version in TESTED) for version in versions]


def _add_params(check: argparse.ArgumentParser) -> None:
    check.set_defaults(params=parse_dtypes(USUAL))
    check.add_argument(
        "target", metavar="TARGET", type=parse_name, help="FILE.py:NAME or MODULE:NAME"
    )
    params = check.add_mutually_exclusive_group()
    params.add_argument(
        "--params",
        metavar="NAME=DTYPE[SHAPE],...",
        type=parse_own,
        help="params like yours; NAME may be dotted",
    )
    params.add_argument(
        "--dtype",
        metavar="DTYPE,...",
        dest="params",
        type=parse_dtypes,
        help=f"check a matrix, a vector and a scalar of each DTYPE; {USUAL} by default",
    )
    check.add_argument(
        "--x64",
        action="store_true",
        default=os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes", "on"),
        help="check in 64-bit mode; the default if JAX_ENABLE_X64 is set, or if DTYPE has 64 bits",
    )
