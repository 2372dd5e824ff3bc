"""``import optax_dtypefix`` is quiet, imports little, and checks the environment."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import optax_dtypefix
from support.scripts import run, start

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = {
    "optax_dtypefix",
    "optax_dtypefix._api",
    "optax_dtypefix._settings",
    "optax_dtypefix._errors",
    "optax_dtypefix._engine",
    "optax_dtypefix._engine.import_hook",
    "optax_dtypefix._engine.lock",
    "optax_dtypefix.patches",
    "optax_dtypefix.patches.catalogue",
}

STANDARD = {"__future__", "contextlib", "importlib", "os", "sys", "threading", "typing", "warnings"}
"""The standard modules that ours import."""


def test_it_imports_few_modules_and_prints_nothing(tmp_path: Path) -> None:
    script = f"""
        for name in {sorted(STANDARD)}:
            __import__(name)
        before = set(sys.modules)
        import optax_dtypefix
        print(*sorted(set(sys.modules) - before))
        """
    done = start(tmp_path, script, "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == OURS


def test_heavy_modules_load_on_demand(tmp_path: Path) -> None:
    script = """
        import optax_dtypefix
        from optax_dtypefix import apply, disabled, is_applied, original, revert, status
        heavy = {"asyncio", "dataclasses", "inspect", "jax", "logging", "optax", "wrapt"}
        print(*sorted(heavy & set(sys.modules)))
        from optax_dtypefix import PatchStatus, Report, State
        assert not hasattr(optax_dtypefix, "Reports")
        assert original(len) is len
        print(*sorted({"jax", "optax"} & set(sys.modules)))
        import optax
        assert "wrapt" in sys.modules and is_applied("multi_steps")
        """
    assert run(tmp_path, script, OPTAX_DTYPEFIX_ONLY="multi_steps") == "\n\n"


def test_the_import_loads_tables_and_no_patch(tmp_path: Path) -> None:
    """Nor reports, checks, reproducers; nor packaging: 2 % of the import of optax."""
    script = """
        import jax, optax, wrapt
        before = set(sys.modules)
        import optax_dtypefix
        loaded = set(sys.modules) - before
        print(*sorted(name for name in loaded if not name.startswith("optax_dtypefix")))
        print(*sorted(name for name in loaded if name.startswith("optax_dtypefix.patches.")))
        lazy = {"_commands", "_contract", "_diagnosis", "_multihost"}
        print(*sorted(loaded & {f"optax_dtypefix.{name}" for name in lazy}))
        """
    tables = [f"optax_dtypefix.patches.{name}" for name in ("catalogue", "releases", "wrapped")]
    assert run(tmp_path, script).splitlines() == ["", " ".join(tables), ""]


@pytest.mark.thorough
def test_a_call_loads_the_patches_of_its_function(tmp_path: Path) -> None:
    script = """
        import optax_dtypefix, optax, jax.numpy as jnp
        from optax_dtypefix.patches import IDS
        def loaded():
            return [i for i in IDS if f"optax_dtypefix.patches.{i}" in sys.modules]
        grads = jnp.ones(3)
        optax.sgd(0.1).update(grads, optax.sgd(0.1).init(grads))
        print(*loaded())
        optax.global_norm(grads)
        print(*loaded())
        optax_dtypefix.status(), repr(optax.adam), optax.adam.__doc__
        print(*loaded())
        """
    by_sgd, by_norm, by_status = map(str.split, run(tmp_path, script).splitlines())
    assert by_sgd == [], "what sgd needs of them are rows"
    assert "global_norm" in by_norm
    assert by_status == by_norm


def test_a_report_costs_nothing_until_optax_is_imported(tmp_path: Path) -> None:
    script = """
        import optax_dtypefix
        heavy = {"dataclasses", "hashlib", "json", "logging", "optax", "wrapt"}
        print(*sorted(heavy & set(sys.modules)))
        """
    assert run(tmp_path, script, OPTAX_DTYPEFIX_REPORT="run.json") == "\n"
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OPTAX_DTYPEFIX", "no", "OPTAX_DTYPEFIX='no' is not valid. Set it to 'on' or 'off'."),
        ("OPTAX_DTYPEFIX_DISABLE", "prodigy,", "OPTAX_DTYPEFIX_DISABLE='prodigy,' has an empty"),
    ],
)
def test_an_invalid_variable_stops_the_program(
    tmp_path: Path, variable: str, value: str, message: str
) -> None:
    done = start(tmp_path, "import optax_dtypefix", **{variable: value})
    assert done.returncode == 1
    assert f"OptaxDtypeFixError: {message}" in done.stderr.splitlines()[-1]
    files = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert len(files) == 2, "more than the user's line, and one of ours that raises"
    assert "script.py" in files[0]


def test_an_unknown_id_stops_the_import_in_strict_mode_only(tmp_path: Path) -> None:
    script = "import optax_dtypefix\nprint('on')"
    unknown = {"OPTAX_DTYPEFIX_DISABLE": "prodgy"}
    for options in ((), ("-W", "error")):
        done = start(tmp_path, script, *options, **unknown)
        assert done.stdout == "on\n", done.stderr
        assert "'prodgy' in OPTAX_DTYPEFIX_DISABLE (ignored). Did you mean 'prod" in done.stderr
        assert ("script.py:" in done.stderr.splitlines()[0]) == (not options)
    strict = start(tmp_path, script, **unknown, OPTAX_DTYPEFIX_STRICT="1")
    assert strict.returncode == 1
    assert "Did you mean 'prodigy'?" in strict.stderr


@pytest.mark.thorough
def test_the_source_tree_works_without_an_installation(tmp_path: Path) -> None:
    """A clone comes first on the path of a process that starts there."""
    package = Path(optax_dtypefix.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "patches")  # A wheel has the patches inside.
    shutil.copytree(package, tmp_path / "optax_dtypefix", ignore=ignored)
    inside = package / "patches"
    beside = inside if inside.exists() else package.parent / "patches"
    shutil.copytree(beside, tmp_path / "patches", ignore=ignored)
    script = """
        sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
        import optax, optax_dtypefix
        print(optax_dtypefix.__file__, *{state.state.value for state in optax_dtypefix.status()})
        """
    printed = run(tmp_path, script, OPTAX_DTYPEFIX_ONLY="fromage,global_norm").split()
    assert printed[0] == str(tmp_path / "optax_dtypefix" / "__init__.py")
    assert set(printed[1:]) == {"applied", "disabled"}


def test_the_patches_come_from_the_place_of_the_package(tmp_path: Path) -> None:
    """Of two clones, one is on the path and the other is an editable installation."""
    package = Path(optax_dtypefix.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "patches")
    shutil.copytree(package, tmp_path / "optax_dtypefix", ignore=ignored)
    for folder in (tmp_path / "other" / "patches", tmp_path / "patches"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("IDS = ()")
        (folder / "catalogue.py").write_text("PATCHES = REMOVED = {}")
    script = f"""
        import importlib.util
        class Editable:
            def find_spec(self, name, path=None, target=None):
                if name == "optax_dtypefix.patches":
                    folder = {str(tmp_path / "other" / "patches")!r}
                    return importlib.util.spec_from_file_location(
                        name, folder + "/__init__.py", submodule_search_locations=[folder]
                    )
        sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
        sys.meta_path.append(Editable())
        import optax_dtypefix.patches
        print(optax_dtypefix.patches.__file__)
        """
    assert run(tmp_path, script) == f"{tmp_path / 'patches' / '__init__.py'}\n"


def test_a_warning_points_at_the_line_that_calls_runpy(tmp_path: Path) -> None:
    script = "import runpy\nrunpy.run_module('optax_dtypefix')"
    done = start(tmp_path, script, OPTAX_DTYPEFIX_ONLY="prodgy")
    assert "script.py:" in done.stderr.splitlines()[0]
    assert "runpy.run_module" in done.stderr.splitlines()[1]


def test_the_engine_imports_neither_jax_nor_optax(tmp_path: Path) -> None:
    script = """
        import importlib, pkgutil
        import optax_dtypefix
        from optax_dtypefix import _engine
        modules = [module.name for module in pkgutil.walk_packages(_engine.__path__)]
        for name in modules:
            importlib.import_module(f"{_engine.__name__}.{name}")
        assert len(modules) > 8, modules
        patches = {name for name in sys.modules if name.startswith("optax_dtypefix.patches.")}
        print(*sorted({"jax", "jaxlib", "numpy", "optax"} & set(sys.modules) | patches))
        """
    assert run(tmp_path, script) == "optax_dtypefix.patches.catalogue\n"


def imports_of(file: Path, parts: tuple[str, ...]) -> Iterator[str]:
    """Yield the modules of the package that a module may import."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = ".".join(parts[: -node.level])
            module = f"{above}.{node.module}" if node.module else above
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_no_two_modules_need_each_other() -> None:
    """Neither inside functions nor for types."""
    import optax_dtypefix.patches

    needs: dict[str, set[str]] = {}
    for package in (optax_dtypefix, optax_dtypefix.patches):
        root = Path(package.__path__[0])
        for file in {*root.rglob("*.py")} - {root / "__init__.py"}:
            parts = (*package.__name__.split("."), *file.relative_to(root).with_suffix("").parts)
            needs[".".join(parts)] = set(imports_of(file, parts))
    assert len(needs) > 100
    for name, found in needs.items():
        packages = {f"{module}.__init__" for module in found}
        needs[name] = (found | packages) & needs.keys() - {name}
    while needs:
        free = [name for name, found in needs.items() if not found & needs.keys() - {name}]
        assert free, f"a circle among {sorted(needs)}"
        for name in free:
            del needs[name]
