"""The import hook calls back after every kind of import, and leaves the module unchanged."""

from __future__ import annotations

import copy
import importlib
import importlib.machinery
import importlib.util
import inspect
import pkgutil
import sys
import textwrap
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import MagicMock

import pytest
import wrapt
from packaging.version import Version

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, State
from optax_dtypefix._engine import import_hook as _import_hook
from optax_dtypefix._engine.import_hook import after_import, is_imported
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, PATIENCE, FakePackage, engine_of, on, patch, start
from support.scripts import FROM_ARCHIVES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ON_DISK = "optax_dtypefix_on_disk"
SOURCE = "def f():\n    return 1\n"


@pytest.fixture
def calls() -> list[Any]:
    """The modules with which the hook, ``calls.append``, was called."""
    return []


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of files, and a folder without ``__init__.py`` beside it."""
    folder = tmp_path / "site"
    (folder / ON_DISK).mkdir(parents=True)
    (folder / ON_DISK / "__init__.py").write_text(SOURCE)
    (folder / ON_DISK / "data.txt").write_text("data")
    (folder / f"{ON_DISK}_namespace").mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith(ON_DISK)]:
        del sys.modules[name]


def test_the_hook_is_called_once_an_import_and_the_finders_of_others_stay(
    package: FakePackage, calls: list[Any]
) -> None:
    finders, before = sys.meta_path, list(sys.meta_path)
    after_import(NAME, calls.append)
    after_import(NAME, calls.append)  # Registered twice, it is called once.
    assert sys.meta_path == [_import_hook._FINDER, *before]
    package.load(f"{NAME}.core")
    assert calls == [package.load()]
    assert calls[0].scale(5) == 10, "called before the module was executed"
    # The same list: another thread may insert a finder meanwhile, or be searching in it.
    assert sys.meta_path is finders
    assert finders == [_import_hook._FINDER, *before]
    importlib.reload(calls[0])
    assert len(calls) == 1
    package.forget()
    assert [calls[0], package.load()] == calls


def test_a_hook_may_wait_for_another_module(package: FakePackage, calls: list[Any]) -> None:
    after_import(NAME, lambda _: after_import(f"{NAME}.extra.late", calls.append))
    after_import(f"{NAME}.extra", calls.append)
    package.load()
    late = package.load(f"{NAME}.extra.late")
    assert calls == [sys.modules[f"{NAME}.extra"], late]


def test_a_module_keeps_its_own_loader(package: FakePackage, calls: list[Any]) -> None:
    loaders = []
    package.before_exec = lambda name: loaders.append(
        [sys.modules[name].__loader__, sys.modules[name].__spec__.loader]  # type: ignore[union-attr]
    )
    after_import(NAME, calls.append)
    package.load()
    assert calls
    assert loaders == [[package, package]] * 2
    assert calls[0].__loader__ is calls[0].__spec__.loader is package


@pytest.mark.parametrize("zipped", [False, pytest.param(True, marks=FROM_ARCHIVES)])
def test_source_data_and_reload_still_work(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch, calls: list[Any], *, zipped: bool
) -> None:
    if zipped:
        archive = on_disk.parent / "archive.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for path in (on_disk / ON_DISK).iterdir():
                file.write(path, f"{ON_DISK}/{path.name}")
        monkeypatch.syspath_prepend(str(archive))
    after_import(ON_DISK, calls.append)
    assert pkgutil.get_data(ON_DISK, "data.txt") == b"data"  # This imports the package.
    (module,) = calls
    assert ("archive.zip" in module.__file__) == zipped
    name = "zipimporter" if zipped else "SourceFileLoader"
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == name
    assert inspect.getsource(module.f) == SOURCE
    assert module.__loader__.get_data(module.__file__) == SOURCE.encode()
    resources = importlib.import_module("importlib.resources")
    assert resources.files(ON_DISK).joinpath("data.txt").read_text() == "data"
    assert importlib.reload(module).f() == 1
    assert len(calls) == 1


@pytest.mark.usefixtures("on_disk")
def test_find_spec_does_not_call_back(calls: list[Any]) -> None:
    after_import(ON_DISK, calls.append)
    for _ in range(2):
        spec: Any = importlib.util.find_spec(ON_DISK)
        loader = spec.loader
        assert loader.get_source(ON_DISK) == SOURCE
        assert loader.path == spec.origin
        assert loader.is_package(ON_DISK)
    aside = importlib.util.module_from_spec(spec)
    loader.exec_module(aside)
    assert aside.f() == 1
    assert not calls
    assert [importlib.import_module(ON_DISK)] == calls


@pytest.mark.usefixtures("on_disk")
def test_the_loader_can_be_copied(calls: list[Any]) -> None:
    after_import(ON_DISK, calls.append)
    spec = importlib.util.find_spec(ON_DISK)
    assert spec is not None
    assert copy.copy(spec.loader).path == copy.deepcopy(spec).loader.path == spec.origin


@pytest.mark.usefixtures("on_disk")
def test_a_lazy_loader_stays_lazy(calls: list[Any]) -> None:
    after_import(ON_DISK, calls.append)
    spec = importlib.util.find_spec(ON_DISK)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[ON_DISK] = module
    spec.loader.exec_module(module)
    assert not calls
    assert module.f() == 1
    assert [module] == calls


@pytest.mark.usefixtures("on_disk")
def test_a_namespace_package_is_unchanged(calls: list[Any]) -> None:
    name = f"{ON_DISK}_namespace"
    after_import(name, calls.append)
    module = importlib.import_module(name)
    assert list(module.__path__)
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__module__ != _import_hook.__name__


class Finds:
    """A finder that returns one spec for the package."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        return self.spec if name == NAME else None


@pytest.mark.usefixtures("package")
def test_a_spec_without_a_loader_is_a_namespace(calls: list[Any]) -> None:
    after_import(NAME, calls.append)
    spec = importlib.machinery.ModuleSpec(NAME, None, is_package=True)
    sys.meta_path.append(object())  # type: ignore[arg-type]  # A finder of Python 2.
    sys.meta_path.insert(1, Finds(spec))
    assert list(importlib.import_module(NAME).__path__) == []
    assert not calls


def test_a_module_may_replace_itself(package: FakePackage, calls: list[Any]) -> None:
    package.sources[NAME] = f"import sys; sys.modules['{NAME}'] = sys"
    after_import(NAME, calls.append)
    assert package.load() is sys
    assert calls == [sys]


def test_a_failed_import_does_not_call_back(package: FakePackage, calls: list[Any]) -> None:
    source = package.sources[NAME]
    package.sources[NAME] += "\n        raise ZeroDivisionError\n"
    after_import(NAME, calls.append)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            package.load()
        package.forget()
    assert not calls
    package.sources[NAME] = source
    assert [package.load()] == calls


def test_a_blocked_import_stays_blocked(
    package: FakePackage, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, NAME, None)
        after_import(NAME, calls.append)
        with pytest.raises(ModuleNotFoundError):
            package.load()
    assert not calls
    assert [package.load()] == calls


def failing_hook(module: Any) -> NoReturn:
    raise ValueError(module.__name__)


def test_a_failing_hook_warns_and_does_not_break_the_import(package: FakePackage) -> None:
    after_import(NAME, failing_hook)
    warning = f"Could not patch {NAME}: ValueError: {NAME}"
    with pytest.warns(OptaxDtypeFixWarning, match=warning) as caught:
        package.load()
    assert caught[0].filename.endswith("fakepackage.py"), "blames the import machinery"


def test_in_strict_mode_a_failing_hook_stops_the_import(package: FakePackage) -> None:
    after_import(NAME, failing_hook, strict=True)
    with pytest.raises(OptaxDtypeFixError, match="Could not patch"):
        package.load()
    assert NAME not in sys.modules


@pytest.mark.parametrize("error", [OptaxDtypeFixError, KeyboardInterrupt])
def test_after_a_stopped_import_the_hook_is_still_armed(
    package: FakePackage, error: type[BaseException]
) -> None:
    errors = [error]
    later = []

    def hook(module: Any) -> None:
        if errors:
            raise errors.pop()
        later.append(module)

    after_import(NAME, hook)
    with pytest.raises(error):
        package.load()
    assert [package.load()] == later


def test_all_importing_threads_wait_for_the_hook(package: FakePackage) -> None:
    def hook(module: Any) -> None:
        threading.Event().wait(0.02)
        module.hooked = [*getattr(module, "hooked", ()), True]

    after_import(NAME, hook)
    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(package.load) for _ in range(8)]
        assert [load.result(PATIENCE).hooked for load in loads] == [[True]] * 8


@pytest.mark.parametrize("fails", [False, True])
def test_after_import_waits_for_an_import_in_another_thread(
    package: FakePackage, calls: list[Any], *, fails: bool
) -> None:
    importing, go_on = package.pause_import()
    core = package.sources[f"{NAME}.core"]
    if fails:
        package.sources[f"{NAME}.core"] = "raise ZeroDivisionError"
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(package.load)
        assert importing.wait(PATIENCE)
        assert NAME in sys.modules
        threading.Timer(0.05, go_on.set).start()
        after_import(NAME, calls.append)
        assert (load.exception(PATIENCE) is not None) == fails
    assert is_imported(NAME) == (not fails)
    assert len(calls) == (not fails)
    package.before_exec = str
    package.sources[f"{NAME}.core"] = core
    assert [package.load()] == calls


class Chained:
    """A finder like jaxtyping's, which wraps the loader that another finder returns."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = self.original.find_spec(name, path, target)
        if spec is not None:
            spec.loader = ChainedLoader(spec.loader)
        return spec


class ChainedLoader:
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        vars(module)["chained"] = True


def test_another_hook_that_was_installed_before(package: FakePackage, calls: list[Any]) -> None:
    sys.meta_path.insert(0, Chained(package))
    after_import(NAME, lambda module: calls.append((module, module.chained)))
    module = package.load()
    assert calls == [(module, True)]
    assert type(module.__loader__) is type(module.__spec__.loader) is ChainedLoader


class AsksAll:
    """A finder that asks all others."""

    def find_spec(self, name: str, *arguments: Any) -> Any:
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, *arguments) for finder in others)
        return next((spec for spec in found if spec is not None), None)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["ours", "that of wrapt", "one that asks all"])
def test_another_finder_before_or_after_ours(
    package: FakePackage, calls: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str, place: int
) -> None:
    """A second one of ours comes if the shim is removed from ``sys.modules`` and imported again.

    That of wrapt asks all finders too, and wraps loaders.
    """
    theirs: list[Any] = []
    importer = sys.modules["wrapt.importer"]
    monkeypatch.setattr(importer, "_post_import_hooks", {})
    monkeypatch.setattr(importer, "_post_import_hooks_init", True)
    wrapt.register_post_import_hook(theirs.append, NAME)
    after_import(NAME, calls.append)
    finders = {"ours": _import_hook._Finder, "that of wrapt": importer.ImportHookFinder}
    sys.meta_path.insert(place, finders.get(kind, AsksAll)())
    module = package.load()
    assert calls == [module]
    assert theirs == [module] * (kind == "that of wrapt")
    if not theirs or place == 0 or Version(wrapt.__version__) >= Version("1.15"):
        assert module.__loader__ is module.__spec__.loader is package  # Before, its loader stayed.


@pytest.mark.parametrize("strict", [False, True])
def test_a_finder_that_bypasses_ours_is_reported_and_apply_patches(
    package: FakePackage, strict: bool
) -> None:
    engine = engine_of(patch("a", on("scale")), settings=Settings(strict=strict))
    engine.status()  # Its own first import would report it too.
    start(engine)
    sys.meta_path.insert(0, Chained(package))
    pkg = package.load()
    assert pkg.scale(5) == 10
    assert engine.status()["a"].state is State.PENDING
    assert engine.status()["a"].reason == (
        f"{NAME} was imported without triggering the import hook; call optax_dtypefix.apply()"
    )
    reported = (
        pytest.raises(OptaxDtypeFixError, match="another import hook")
        if strict
        else pytest.warns(OptaxDtypeFixWarning, match=r"import hook.*Call optax_dtypefix.apply\(\)")
    )
    with reported:
        importlib.util.find_spec("that_is_not_there")  # Any search reports it, once.
    assert importlib.util.find_spec("that_is_not_there_either") is None
    engine.apply()
    assert engine.is_applied("a")
    assert pkg.scale(5) == -10


@pytest.mark.parametrize("lazily", [False, True])
def test_a_module_that_is_loaded_by_hand_is_not_missed(
    package: FakePackage, calls: list[Any], lazily: bool
) -> None:
    """The module is in ``sys.modules``, and nothing marks it as being imported."""
    source = textwrap.dedent(package.sources[NAME])
    package.sources[NAME] = (
        source + "\nfrom importlib.util import find_spec; find_spec('not_there')\n"
    )
    after_import(NAME, calls.append)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    if lazily:
        spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    assert module.__version__ == "0.2.5"
    assert calls == [module]


def test_a_hook_for_a_loaded_module_may_import(package: FakePackage) -> None:
    """While the hook runs, the module is both awaited and loaded: no import was missed."""
    package.load()
    calls = []

    def hook(module: ModuleType) -> None:
        calls.append(module)
        assert importlib.util.find_spec("that_is_not_there") is None

    after_import(NAME, hook)
    assert calls == [package.load()]


def test_jaxtyping_on_the_same_package(on_disk: Path, calls: list[Any]) -> None:
    jaxtyping = pytest.importorskip("jaxtyping")
    with jaxtyping.install_import_hook(ON_DISK, None):
        after_import(ON_DISK, calls.append)
        module = importlib.import_module(ON_DISK)
    assert calls == [module]
    assert type(module.__loader__).__name__ == "_JaxtypingLoader"
    assert str(on_disk) in str(module.__file__)


@pytest.mark.parametrize("first", ["shim", "lazy module"])
def test_a_lazy_package_is_patched_when_it_is_loaded(package: FakePackage, first: str) -> None:
    """As ``lazy_loader.load`` makes it. Shim first, it stays asleep until somebody looks at it."""
    engine = engine_of(patch("a", on("scale")))
    if first == "shim":
        start(engine)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    pkg: Any = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = pkg
    importlib.util.LazyLoader(spec.loader).exec_module(pkg)
    if first == "lazy module":
        start(engine)  # Loads it.
    else:
        package.load("colorsys")  # Any import may look for missed ones.
        with engine.disabled():
            pass
        assert f"{NAME}.core" not in sys.modules
    assert pkg.scale(5) == -10
    assert engine.is_applied("a")
    assert type(pkg) is type(sys)
    engine.revert()
    assert pkg.scale(5) == 10


def test_a_package_that_imports_us_itself_is_named(package: FakePackage) -> None:
    """As a fork of optax may. Its import has passed the hook."""
    engine = engine_of(patch("a", on("scale")))
    package.sources[NAME] = "import sys; sys.modules['test_hook'].begin()\n" + textwrap.dedent(
        package.sources[NAME]
    )
    sys.modules["test_hook"] = hook = ModuleType("test_hook")
    hook.begin = lambda: start(engine)  # type: ignore[attr-defined]
    try:
        pkg = package.load()
    finally:
        del sys.modules["test_hook"]
    with pytest.warns(OptaxDtypeFixWarning, match=r"is not patched: .*Call optax_dtypefix.apply"):
        importlib.util.find_spec("that_is_not_there")
    engine.apply()
    assert pkg.scale(5) == -10


@pytest.mark.parametrize("mock", [MagicMock(), MagicMock(spec=sys)], ids=["any", "module"])
def test_a_mock_in_place_of_the_package_is_no_package(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch, mock: Any
) -> None:
    engine = engine_of(patch("a", on("scale")))
    with monkeypatch.context() as mocked:
        mocked.setitem(sys.modules, NAME, mock)
        start(engine)
        engine.apply()
        assert [p.state for p in engine.status()] == [State.PENDING]
    assert package.load().scale(5) == -10
    with monkeypatch.context() as mocked:
        mocked.setitem(sys.modules, NAME, mock)
        engine.apply()
        assert engine.is_applied("a")
