"""Give the shim to every Python of an environment, by a file in its site-packages.

Python executes a line of a ``.pth`` file that starts with ``import`` when it starts. Ours holds a
copy of ``_startup/sitecustomize.py``. If the shim cannot be imported, because the package is gone
for example, ``import optax`` prints why; in a strict environment, it is an error.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import site
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from .. import OptaxDtypeFixError, __version__
from .run import FOLDER

FILE = "optax_dtypefix_activate.pth"

UNREADABLE = "It cannot be read"

_MARK = "# optax-dtypefix: every Python of this environment imports optax_dtypefix before optax."
_IS_ACTIVE = "import sys; print('optax_dtypefix' in sys.modules)"


def activate(*, strict: bool) -> str:
    """Write the file, or write it again. Return what was done, as text.

    Args:
      strict: whether ``import optax`` is an error in a process in which it cannot be patched.

    Raises:
      OptaxDtypeFixError: the file cannot be written, is not ours, or Python does not read it.
    """
    path = _path()
    _refuse_others(path)
    _write(path, _text(path, strict=strict))
    done = subprocess.run(
        [sys.executable, "-c", _IS_ACTIVE], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.stdout.strip() != "True":
        path.unlink()
        raise OptaxDtypeFixError(
            f"{sys.executable} does not read {path.parent} when it starts. Run each program with "
            f"`python -m optax_dtypefix run` instead."
        )
    refuses = " `import optax` is an error where optax cannot be patched." if strict else ""
    return (
        f"Wrote {path}\nEvery Python of this environment now imports optax_dtypefix at its start."
        f"{refuses} To undo: python -m optax_dtypefix deactivate"
    )


def deactivate() -> str:
    """Remove the file. Return what was done, as text.

    Raises:
      OptaxDtypeFixError: the file cannot be removed, or is not ours.
    """
    path = _path()
    if not path.exists():
        return f"Not active: there is no {path}"
    _refuse_others(path)
    try:
        path.unlink()
    except OSError as error:
        raise _denied("remove", path, error) from error
    return f"Removed {path}"


def active_files() -> dict[str, str]:
    """Return each file of ours that Python reads when it starts, and who wrote it.

    If this user cannot read one, the text starts with ``UNREADABLE``, and says why.
    """
    folders = [*site.getsitepackages(), site.getusersitepackages(), str(_path().parent)]
    found = {}
    paths = dict.fromkeys(Path(folder) / FILE for folder in folders)
    for path in filter(os.path.lexists, paths):
        try:
            if _is_ours(path):
                found[str(path)] = path.read_text(encoding="ascii").splitlines()[1].lstrip("# ")
        except OSError as error:  # Python says nothing.
            found[str(path)] = f"{UNREADABLE} ({error.strerror}): this Python runs stock optax."
    return found


def _path() -> Path:
    """Return the path of the file: in the user's site-packages if we are installed there."""
    user = site.getusersitepackages()
    try:
        here = str(importlib.metadata.distribution("optax-dtypefix").locate_file(""))
    except importlib.metadata.PackageNotFoundError:
        here = ""
    in_user_site = os.path.realpath(here) == os.path.realpath(user)
    return Path(user if in_user_site else sysconfig.get_path("purelib")) / FILE


def _text(path: Path, *, strict: bool) -> str:
    """Return the lines of the file, in ASCII: Python reads it in the encoding of the locale."""
    try:
        user = getpass.getuser()
    except Exception:  # A container may run under an id that has no name.
        user = "an unknown user"
    when = time.strftime("%Y-%m-%d %H:%M")
    how = ", strict" if strict else ""
    who = ascii(f"Written by optax-dtypefix {__version__} for {user} on {when}{how}.")[1:-1]
    startup = Path(FOLDER, "sitecustomize.py")
    names = {
        "__file__": str(startup),
        "__name__": "optax_dtypefix_startup",
        "STRICT": "1" if strict else "0",
        "FILE": str(path),
    }
    code = startup.read_text(encoding="utf-8")
    return f"{_MARK}\n# {who}\nimport sys; exec({code!a}, {names!a})\n"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{FILE}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="ascii")
            # For all who use the environment, whatever the umask is.
            temporary.chmod(path.parent.stat().st_mode & 0o666)
            temporary.replace(path)  # Another Python may start at this moment.
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _denied("write", path, error) from error


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").startswith(_MARK)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def _refuse_others(path: Path) -> None:
    if path.exists() and not _is_ours(path):
        raise OptaxDtypeFixError(f"{path} was not written by this command. Remove it by hand.")


def _denied(what: str, path: Path, error: OSError) -> OptaxDtypeFixError:
    return OptaxDtypeFixError(
        f"cannot {what} {path}: {error.strerror}. Run this as the owner of the environment, or in "
        f"a virtual environment of your own."
    )
