"""``run``: run an unmodified script or module as ``__main__``, under the shim.

Not with ``runpy``, whose ``__main__`` is gone when it returns: exit handlers and threads that
outlive the script could no longer pickle objects of the script. Here the program's ``__main__``
stays until the process ends, as in plain Python.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
import types
from typing import TYPE_CHECKING, Any, Callable

from .._engine.import_hook import after_import

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class _Program:
    """Code to run, its ``sys.argv[0]``, and the attributes of its ``__main__``."""

    code: types.CodeType
    name: str
    attributes: dict[str, Any]


_NO_MODULE = {"__cached__": None, "__package__": None, "__spec__": None}


class _NotFoundError(Exception):
    """There is nothing to run; ``code`` is the exit code of Python in that case."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Run ``python path arguments...``. Exceptions of the script, SystemExit too, pass through.

    Args:
      path: of a source or ``.pyc`` file, or of a folder or zip archive that has a ``__main__``; or
        ``-``, which reads source from stdin.
      arguments: of the program.

    Returns:
      0, or 2 if the file cannot be read, 1 if there is no ``__main__``, with a message.
    """
    sys.argv[:] = [path, *arguments]
    if path == "-":
        _put_first_on_path("")
        return _execute(_stdin)
    place = os.path.abspath(path) + os.sep * path.endswith(os.sep)  # As Python spells it.
    finder = pkgutil.get_importer(place)  # None for a plain file.
    if finder is not None:
        _put_first_on_path(place, always=True)
        return _execute(lambda: _folder(path, finder))
    _put_first_on_path(os.path.dirname(os.path.realpath(path)))
    return _execute(lambda: _script(path))


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run ``python -m name arguments...``. Exceptions of the module, SystemExit too, pass through.

    Returns:
      0, or 1 if there is no such module, with a message.
    """
    sys.argv[:] = ["-m", *arguments]
    _put_first_on_path(os.getcwd())
    return _execute(lambda: _module(name))


def _script(path: str) -> _Program:
    file = os.path.abspath(path)  # Absolute, as Python sets ``__file__`` of a script.
    compiled = path.endswith(".pyc")
    kind = (importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader)[
        compiled
    ]
    loader: Any = kind("__main__", file)
    try:
        data = loader.get_data(file)
    except OSError as error:
        raise _NotFoundError(f"can't open file {path!r}: {error.strerror}", 2) from None
    code = loader.get_code("__main__") if compiled else _compile(data, file)
    return _Program(code, path, {**_NO_MODULE, "__file__": file, "__loader__": loader})


def _stdin() -> _Program:
    own = {"__file__": "<stdin>", "__loader__": importlib.machinery.BuiltinImporter}
    code = _compile(sys.stdin.buffer.read(), "<stdin>")
    return _Program(code, "-", {**_NO_MODULE, **own})


def _compile(source: bytes, file: str) -> types.CodeType:
    code: types.CodeType = compile(source, file, "exec", dont_inherit=True)
    return code


def _folder(path: str, finder: Any) -> _Program:
    spec = finder.find_spec("__main__")
    if spec is None:
        raise _NotFoundError(f"can't find '__main__' module in {path!r}", 1)
    return _program(spec, spec.loader.get_code("__main__"), path)


def _module(name: str) -> _Program:
    spec = _spec_of(name)
    loader: Any = spec.loader if spec else None
    code = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise _NotFoundError(f"there is no runnable module {name!r}", 1)
    return _program(spec, code, spec.origin or name)


def _program(spec: importlib.machinery.ModuleSpec, code: types.CodeType, name: str) -> _Program:
    attributes = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return _Program(code, name, attributes)


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find the module to run: of a package, its ``__main__``."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # A parent package exists, but one of its own imports is missing.
        return None
    return spec


def _put_first_on_path(folder: str, *, always: bool = False) -> None:
    """Replace the folder that Python put first for our own command.

    In isolated mode there is none. Python then adds none for a program, but always a zip archive or
    folder that is the program.
    """
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _execute(load: Callable[[], _Program]) -> int:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    _watch_for_spawning()
    try:
        program = load()
        sys.argv[0] = program.name
        vars(main).update(program.attributes, __builtins__=builtins)
        exec(program.code, vars(main))
    except _NotFoundError as error:
        print(f"optax-dtypefix run: {error}", file=sys.stderr)
        return error.code
    except BaseException:
        _hide_our_frames()
        raise  # The interpreter knows best which exit code or signal it means.
    return 0


def _hide_our_frames() -> None:
    """Cut our frames from the traceback that the interpreter shows, and keep the program's hook."""
    show = sys.excepthook

    def show_the_program(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        while traceback is not None and traceback.tb_frame.f_code is not _execute.__code__:
            traceback = traceback.tb_next
        while traceback is not None and traceback.tb_frame.f_globals is globals():
            traceback = traceback.tb_next
        error.__traceback__ = traceback
        show(kind, error, traceback)

    sys.excepthook = show_the_program


def _reach_spawned(spawn: Any) -> None:
    """Install the shim in processes that multiprocessing spawns, before they import the program.

    A spawned process first unpickles its preparation data. Our entry in that data imports the shim,
    which does the same for the processes that this one spawns.
    """
    stock = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**stock(name), "optax_dtypefix": _ReinstallOnUnpickle()}

    spawn.get_preparation_data = get_preparation_data


class _ReinstallOnUnpickle:
    """Pickled into child processes; unpickling installs the spawn hook there."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _watch_for_spawning, ()


def _watch_for_spawning() -> None:
    after_import("multiprocessing.spawn", _reach_spawned)
