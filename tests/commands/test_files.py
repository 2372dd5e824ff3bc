"""The package writes the files that SECURITY.md names, and opens no network connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.processes import TESTS, stdout_of

if TYPE_CHECKING:
    from support.processes import Python

WATCHED = """
import os, re, sys

TEMPORARY = os.environ.get("TMPDIR", "/tmp")  # SciPy asks which folder is for temporary files.

def watch(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.sendto", "os.mkdir"):
        print(event, *arguments)
    elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if isinstance(arguments[0], int):
            return  # A file that is open already, as Python 3.9's tempfile passes it.
        path = os.fsdecode(arguments[0])
        if path != os.devnull and os.path.dirname(path) != TEMPORARY:
            print(event, name_of(path))
    elif event == "os.rename":
        print(event, name_of(arguments[1]))

def name_of(path):  # A report is written beside its place first.
    return re.sub(r"\\.[0-9a-f]{8}\\.tmp$", "", os.path.basename(path))

sys.dont_write_bytecode = True
sys.addaudithook(watch)
import optax_dtypefix
import optax
str(optax_dtypefix.status())
optax.adam(0.1)
"""


def test_only_a_report_is_written(python: Python) -> None:
    assert stdout_of(python("-c", WATCHED)) == ""
    written = stdout_of(python("-c", WATCHED, OPTAX_DTYPEFIX_REPORT="report.json"))
    assert set(written.splitlines()) == {"open report.json", "os.rename report.json"}


def test_the_page_shows_the_file_of_activate() -> None:
    from optax_dtypefix._commands.activate import FILE, LINE

    page = (TESTS.parent / "SECURITY.md").read_text(encoding="utf-8")
    assert f"`{FILE}`" in page
    assert f"```text\n{LINE}```" in page
