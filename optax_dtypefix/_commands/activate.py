"""Give the shim to every Python of an environment, by one line in its site-packages.

Python executes a line of a ``.pth`` file that starts with ``import`` when it starts. Ours imports
the shim if Python finds it there. It names no folder: what is there after an uninstallation is not
ours.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from .. import (
    OptaxDtypeFixError,
    __path__ as _ours,
)

FILE = "optax_dtypefix.pth"
# ``import_module`` would show seven frames of importlib in the traceback of an error.
LINE = (
    'import importlib.util; importlib.util.find_spec("optax_dtypefix") and '
    '__import__("optax_dtypefix")\n'
)
_BEFORE = ("optax_dtypefix_activate.pth", "optax_dtypefix_activate.py")  # 2.0 and older wrote them.
_FOUND = "import sys; print(getattr(sys.modules.get('optax_dtypefix'), '__file__', ''))"


def activate() -> str:
    """Write the line. Return what was done, as text.

    Raises:
      OptaxDtypeFixError: the file cannot be written, or is not ours; or a Python that starts does
        not import the package by it.
    """
    path = _folder() / FILE
    _remove(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINE, encoding="ascii")
        # For all who use the environment, whatever the umask is.
        path.chmod(path.parent.stat().st_mode & 0o666)
    except OSError as error:
        raise _denied("write", path, error) from error
    # PYTHONPATH may lead to a package that is not installed here.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", _FOUND]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    found = os.path.dirname((done.stdout.splitlines() or [""])[-1])
    if os.path.realpath(found) != os.path.realpath(_ours[0]):
        path.unlink()
        raise OptaxDtypeFixError(
            f"Cannot activate {_ours[0]}: with {path}, {sys.executable} imports "
            f"{found or 'no optax_dtypefix'} when it starts. Install the package into this "
            f"environment with pip, and run `{sys.executable} -m optax_dtypefix activate` in "
            f"another folder. Or run each program with `python -m optax_dtypefix run`."
        )
    return (
        f"Wrote {path}\nEvery Python of this environment now imports optax_dtypefix at its start. "
        f"To undo: python -m optax_dtypefix deactivate"
    )


def deactivate() -> str:
    """Remove the file. Return what was done, as text.

    Raises:
      OptaxDtypeFixError: the file cannot be removed, or is not ours.
    """
    removed = _remove(_folder())
    return f"Removed {' and '.join(removed)}" if removed else f"Not active: no {_folder() / FILE}"


def active_files() -> list[str]:
    """Return each file of ours that Python reads when it starts."""
    folders = [*site.getsitepackages(), site.getusersitepackages(), str(_folder())]
    paths = [os.path.join(folder, name) for folder in folders for name in (FILE, _BEFORE[0])]
    return [*dict.fromkeys(filter(os.path.exists, paths))]


def _folder() -> Path:
    """Return the site-packages: those of the user if we are installed there."""
    user = Path(site.getusersitepackages())
    in_user_site = Path(_ours[0]).resolve().parent == user.resolve()
    return user if in_user_site else Path(sysconfig.get_path("purelib"))


def _remove(folder: Path) -> list[str]:
    """Remove our files, also those of older versions. Return their paths."""
    removed = []
    for path in (folder / name for name in (FILE, *_BEFORE)):
        try:
            if path.name == FILE and 'find_spec("optax_dtypefix")' not in path.read_text("utf-8"):
                raise OptaxDtypeFixError(f"{path} was not written by this command: remove it.")
            path.unlink()
            removed.append(str(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _denied("remove", path, error) from error
    return removed


def _denied(what: str, path: Path, error: OSError) -> OptaxDtypeFixError:
    return OptaxDtypeFixError(
        f"cannot {what} {path}: {error.strerror}. Run this as the owner of the environment, or in "
        f"a virtual environment of your own."
    )
