"""Run the command ``python -m optax_dtypefix``, also installed as ``optax-dtypefix``."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
import warnings
from typing import TYPE_CHECKING, Any

from .. import _RECORD, OptaxDtypeFixError, OptaxDtypeFixWarning, State, status
from .._api import SETTINGS
from .._diagnosis.check_command.optimizer import OptimizerError
from .._diagnosis.check_command.results import OptimizerCheck, compare
from .._diagnosis.check_command.source import refuse_missing
from .._diagnosis.doctor import Diagnosis, diagnose
from .._diagnosis.import_optax import NoOptaxError, import_optax
from .._diagnosis.scan.results import scan
from .._engine.release import installed
from .._environment import CHECK_FAILED
from .._record import read_record
from ..patches.releases import TESTED
from .activate import activate, active_files, deactivate
from .colour import painter
from .parser import parse
from .rows import Rows
from .run import run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

_TAKES_TIME = {
    "doctor": "Reproducing each fault on stock and on patched optax ...",
    "check": "Checking {target} on stock and on patched optax ...",
    "scan": "Looking for functions with faults ...",
}
"""What a terminal shows while a command runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
      argv: arguments without the name of the program; ``sys.argv[1:]`` if not given.

    Returns:
      The exit code. Usage errors, and exceptions of a program under ``run``, are raised.
    """
    if sys.stderr is None:  # As in ``2>&-``: ``print`` and argparse would take stdout.
        sys.stderr = io.StringIO()
    options = parse(sys.argv[1:] if argv is None else list(argv))
    if options.command == "run":
        return _run(options)
    if sys.stdout is None:  # As in ``>&-``.
        raise SystemExit("optax-dtypefix: stdout is closed. Redirect stdout to a file.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Messages may hold what a terminal cannot show.
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "status": _status,
        "doctor": _doctor,
        "check": _check,
        "scan": _scan,
        "activate": lambda options: _say(options, activate()),
        "deactivate": lambda options: _say(options, deactivate()),
    }
    if options.command in _TAKES_TIME and sys.stderr.isatty():
        print(_TAKES_TIME[options.command].format_map(vars(options)), file=sys.stderr)
    try:
        return commands[options.command](options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # As in ``| head``: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OptaxDtypeFixError, NoOptaxError, OptimizerError, OSError) as error:
        print(f"optax-dtypefix: {error}", file=sys.stderr)
        return CHECK_FAILED if options.command in ("check", "scan") else 1
    except ImportError as error:
        from .._diagnosis.installation import mixed_installation

        if not (why := mixed_installation()):
            raise
        raise SystemExit(f"optax-dtypefix: {error}. {why}") from error


def _run(options: argparse.Namespace) -> int:
    paths = {"OPTAX_DTYPEFIX_REPORT": options.report, "OPTAX_DTYPEFIX_REQUIRE": options.require}
    # Absolute: the program may change its folder.
    variables = {name: os.path.abspath(path) for name, path in paths.items() if path}
    if options.verbose and SETTINGS.log_level is None:
        variables["OPTAX_DTYPEFIX_LOG"] = "info"
    try:
        if options.require:
            read_record(variables["OPTAX_DTYPEFIX_REQUIRE"])
    except OptaxDtypeFixError as error:
        print(f"optax-dtypefix run: {error}", file=sys.stderr)
        return 2
    start = ["-m", *options.module] if options.module else ["--"]
    if options.program[:1] == start:  # As in ``run -- -script.py``.
        start = []
    return run([*start, *options.program], variables)


def _status(options: argparse.Namespace) -> int:
    _look_for_optax()
    refusal = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptaxDtypeFixWarning)  # The table has the same text.
        try:
            import_optax()
        except OptaxDtypeFixError as error:  # Strict mode.
            refusal = error
        except Exception as error:  # A broken installation of optax or jax fails in its own way.
            advice = 'For the traceback, run `python -c "import optax"`.'
            raise NoOptaxError(f"{type(error).__name__}: {error}\n{advice}") from error
    report = status()
    text = report.as_text(
        shutil.get_terminal_size().columns, verbose=options.verbose, paint=painter()
    )
    active = active_files()
    text += "".join(f"\n\nActive in every Python of this environment, by {p}" for p in active)
    _say(options, text, {**report.as_dict(), "active_files": active})
    failed = [patch.id for patch in report if patch.state is State.FAILED]
    if failed:
        print(f"\nFailed: {', '.join(failed)}. Their functions stay stock.", file=sys.stderr)
    if refusal is not None:
        why = " (OPTAX_DTYPEFIX_STRICT=1)" if SETTINGS.strict else ""
        print(f"\n`import optax` raises an error{why}: {refusal}", file=sys.stderr)
    return 1 if failed or report.installation or refusal is not None else 0


def _doctor(options: argparse.Namespace) -> int:
    _look_for_optax()
    known = [*filter(None, options.patches)]  # Not those that are removed.
    if options.patches and not known:
        return 0
    width, paint, rows = shutil.get_terminal_size().columns, painter(), Rows()

    def show(so_far: Diagnosis) -> None:
        rows.show(so_far.rows_as_text(width, paint=paint))

    at_the_end = options.json or options.verbose
    found = diagnose(known, None if at_the_end else show)
    if not options.json:
        rows.show(found.rows_as_text(width, verbose=options.verbose, paint=paint))
    text = f"{found.conclusion}\n{rows.count(found.count, 'fault')}"
    return _say(options, text, found.as_dict(), 0 if found.ok else 1)


def _check(options: argparse.Namespace) -> int:
    _look_for_optax()
    refuse_missing(options.target)
    rows = Rows()

    def show(so_far: OptimizerCheck) -> None:
        rows.show(so_far.rows(verbose=options.verbose))

    found = compare(
        options.target, options.params, x64=options.x64, show=None if options.json else show
    )
    if not options.json:
        show(found)
    text = f"{found.conclusion}\n{rows.count(len(found.checks), 'check')}"
    return _say(options, text, found.as_dict(), found.verdict)


def _scan(options: argparse.Namespace) -> int:
    releases = options.releases or [installed("optax", TESTED)]
    if not releases[0].text:
        raise NoOptaxError("it is not installed. Name a release: --optax 0.2.8")
    found = scan(options.paths, releases, options.dtypes)
    return _say(options, found.as_text(), found.as_dict(), found.verdict)


def _look_for_optax() -> None:
    if _RECORD:  # The report is that of a run, which this is not.
        _RECORD.write_nothing()
    if importlib.util.find_spec("optax") is None:
        why = f"it is not installed. Run `{sys.executable} -m pip install optax`."
        raise NoOptaxError(why)


def _say(
    options: argparse.Namespace, text: str, record: Mapping[str, Any] | None = None, code: int = 0
) -> int:
    """Print a text, or with ``--json`` the record, and return the exit code."""
    as_json = record is not None and options.json
    print(json.dumps(record, indent=2) if as_json else text, flush=True)
    return code
