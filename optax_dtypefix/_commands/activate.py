"""Give the shim to every Python of an environment, by two files in its site-packages.

Python executes a line of a ``.pth`` file that starts with ``import`` when it starts. Ours imports
the other file, a copy of ``_startup/optax_dtypefix_startup.py``. If the shim cannot be imported,
because the package is gone for example, ``import optax`` prints why; in a strict environment, it is
an error. Neither file names a folder: what is there after an uninstallation is not ours.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import site
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .. import OptaxDtypeFixError, __version__, patches
from .._files import replace_file
from .run import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "optax_dtypefix_activate"
FILE = f"{MODULE}.pth"

_PACKAGE = Path(FOLDER).parent

UNREADABLE = "It cannot be read"

_MARK = "# optax-dtypefix: every Python of this environment imports optax_dtypefix before optax."
_IS_READ = f"import sys; print({MODULE!r} in sys.modules)"
_FIND = """\
import sys
sys.path[:] = filter(None, sys.path)  # Not the current folder.
try:
    import optax_dtypefix
    print(optax_dtypefix.__path__[0])
except ImportError:
    print()
"""


def activate(*, strict: bool) -> str:
    """Write the files, or write them again. Return what was done, as text.

    Args:
      strict: whether ``import optax`` is an error in a process in which it cannot be patched.

    Raises:
      OptaxDtypeFixError: the files cannot be written, are not ours, or Python does not read them;
        Python finds another package than this one, or others may write this one.
    """
    path = _path()
    _refuse_others(path)
    _refuse_what_python_does_not_find()
    _refuse_what_others_may_write(path.parent)
    header = _header(strict=strict)
    code = Path(FOLDER, "optax_dtypefix_startup.py").read_text(encoding="utf-8")
    call = f"import_at_start(__file__, strict={strict})"
    _write(_code_of(path), f"{header}{code}\n\n{call}\n")
    _write(path, f"{header}import {MODULE}\n")
    if _output_of_python(_IS_READ) != "True":
        _remove(path)
        raise OptaxDtypeFixError(
            f"{sys.executable} does not read {path.parent} when it starts. Run each program with "
            f"`python -m optax_dtypefix run` instead."
        )
    refuses = " `import optax` is an error where optax cannot be patched." if strict else ""
    return (
        f"Wrote {path}\nand {_code_of(path)}\n"
        f"Every Python of this environment now imports optax_dtypefix at its start."
        f"{refuses} To undo: python -m optax_dtypefix deactivate"
    )


def deactivate() -> str:
    """Remove the files. Return what was done, as text.

    Raises:
      OptaxDtypeFixError: a file cannot be removed, or is not ours.
    """
    path = _path()
    if not (path.exists() or _code_of(path).exists()):
        return f"Not active: there is no {path}"
    _refuse_others(path)
    return f"Removed {' and '.join(map(str, _remove(path)))}"


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


def _code_of(path: Path) -> Path:
    """Return the path of the file that our ``.pth`` file imports."""
    return path.with_name(f"{MODULE}.py")


def _header(*, strict: bool) -> str:
    """Return the first lines of a file, in ASCII: Python reads .pth files as the locale says."""
    try:
        user = getpass.getuser()
    except Exception:  # A container may run under an id that has no name.
        user = "an unknown user"
    when = time.strftime("%Y-%m-%d %H:%M")
    how = ", strict" if strict else ""
    who = ascii(f"Written by optax-dtypefix {__version__} for {user} on {when}{how}.")[1:-1]
    return f"{_MARK}\n# {who}\n"


def _output_of_python(code: str) -> str:
    """Return the last line that a Python of this environment prints, started again."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return (done.stdout.splitlines() or [""])[-1]


def _refuse_what_python_does_not_find() -> None:
    """Refuse a package in a zip archive, an unpacked pex, or a clone that is not installed."""
    found = _output_of_python(_FIND)
    if not found:
        raise OptaxDtypeFixError(
            f"Cannot activate {_PACKAGE}: {sys.executable} does not find it when it starts. "
            f"Install the package into this environment with pip, and run `{sys.executable} -m "
            f"optax_dtypefix activate`."
        )
    if not (_PACKAGE.is_dir() and _PACKAGE.samefile(found)):
        raise OptaxDtypeFixError(
            f"Cannot activate {_PACKAGE}: {sys.executable} finds {found} when it starts. To "
            f"activate that one, run `{sys.executable} -m optax_dtypefix activate` in another "
            f"folder."
        )


def _refuse_what_others_may_write(site_packages: Path) -> None:
    """Refuse a clone, or another folder outside of site-packages, in which others may put code."""
    folders = [site_packages, *map(Path, site.getsitepackages())]
    if os.name != "posix" or _PACKAGE.resolve().parent in [folder.resolve() for folder in folders]:
        return
    paths = _what_python_reads(_PACKAGE, Path(patches.__path__[0]).absolute())
    for path in filter(Path.exists, paths):  # An editor may leave a link to nothing.
        who = _who_else_may_write(path)
        if who:
            raise OptaxDtypeFixError(
                f"Cannot activate {_PACKAGE}: {who} may write {path}, and so run code in every "
                f"Python of this environment. Install the package without `-e`, or move it to a "
                f"folder that only you can write, and run this again."
            )


def _who_else_may_write(path: Path) -> str:
    status = path.stat()
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    # What root runs may harm others. Everyone else may trust a colleague.
    return f"uid {status.st_uid}" if os.geteuid() == 0 and status.st_uid else ""


def _what_python_reads(*folders: Path) -> Iterator[Path]:
    """Return the folders, all that is in them, and where they are, also behind links."""
    for folder in folders:
        yield from (*folder.parents, *folder.resolve().parents, folder, *folder.rglob("*"))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # For all who use the environment, whatever the umask is.
        replace_file(str(path), text, mode=path.parent.stat().st_mode & 0o666)
    except OSError as error:
        raise _denied("write", path, error) from error


def _remove(path: Path) -> list[Path]:
    """Remove the files, and what Python compiled. Return the paths of the files."""
    code = _code_of(path)
    removed = []
    for file in (path, code, *code.parent.glob(f"__pycache__/{MODULE}.*.pyc")):
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _denied("remove", file, error) from error
        removed.append(file)
    return [file for file in removed if file.suffix != ".pyc"]


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").startswith(_MARK)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def _refuse_others(path: Path) -> None:
    for file in (path, _code_of(path)):
        if file.exists() and not _is_ours(file):
            raise OptaxDtypeFixError(f"{file} was not written by this command. Remove it by hand.")


def _denied(what: str, path: Path, error: OSError) -> OptaxDtypeFixError:
    return OptaxDtypeFixError(
        f"cannot {what} {path}: {error.strerror}. Run this as the owner of the environment, or in "
        f"a virtual environment of your own."
    )
