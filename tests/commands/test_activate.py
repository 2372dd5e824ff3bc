"""``activate`` gives the shim to every Python of an environment, and never breaks one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import optax_dtypefix
from optax_dtypefix._commands.activate import FILE, LINE
from support.processes import environment, write_script
from support.thorough import one_of

REAL = Path(optax_dtypefix.__file__).parent


class Environment:
    """A virtual environment with a copy of the shim, and the packages of this Python."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        (self.site,) = folder.glob("[Ll]ib/**/site-packages")
        self.shim = self.site / "optax_dtypefix"
        ignored = shutil.ignore_patterns("__pycache__", "patches")
        shutil.copytree(REAL, self.shim, ignore=ignored)
        patches = Path(optax_dtypefix.patches.__file__).parent
        shutil.copytree(patches, self.shim / "patches", ignore=ignored)
        # After the file of ``activate``, as the packages of a base environment are.
        parent = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        self.parent = self.site / "zz_parent.pth"
        self.parent.write_text(parent)
        self.file = self.site / FILE

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.site.parent,
            env=environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    def prints(self, code: str, *options: str, **variables: str) -> str:
        done = self(*options, "-c", code, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def command(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self("-m", "optax_dtypefix", *arguments, **variables)

    def fake_optax(self) -> None:
        """Put an optax there that is imported at once."""
        (self.site / "optax").mkdir()
        (self.site / "optax" / "__init__.py").write_text("")


@pytest.fixture
def made(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


@pytest.fixture
def active(made: Environment) -> Environment:
    made.fake_optax()
    done = made.command("activate")
    assert (done.returncode, done.stderr) == (0, "")
    return made


OFF = {"OPTAX_DTYPEFIX": "off"}  # The shim is imported and does nothing: no jax.
IMPORT = "import optax; print(optax.__name__)"


def test_activate_status_and_deactivate(made: Environment) -> None:
    assert "Not active" in made.command("deactivate").stdout
    for _ in range(2):  # The second time it only writes the file again.
        done = made.command("activate")
        assert done.stdout.startswith(f"Wrote {made.file}\n"), done.stderr
    assert made.file.read_text() == LINE
    status = made("-m", "optax_dtypefix", "status", "--json", OPTAX_DTYPEFIX_ONLY="fromage")
    assert json.loads(status.stdout)["active_files"] == [str(made.file)]

    write_script(
        made.site.parent,
        """
        import multiprocessing, subprocess, sys

        def state(_=None):
            import optax, sys  # It forgot the shim.
            shim = sys.modules["optax_dtypefix"]
            return str(shim.status()["fromage"].state), shim._api.SETTINGS.strict

        if __name__ == "__main__":
            code = "import script; print(script.state())"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout.decode())
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(state, [0]))
        """,
    )
    children = made("script.py", OPTAX_DTYPEFIX_ONLY="fromage", OPTAX_DTYPEFIX_STRICT="1")
    state = ("applied", True)
    assert children.stdout == f"{state}\n\n{[state]}\n", children.stderr

    assert made.command("deactivate").stdout == f"Removed {made.file}\n"
    assert not made.file.exists()
    assert made.prints("import sys; print('optax_dtypefix' in sys.modules)") == "False\n"


def test_it_imports_the_shim_alone_before_optax_and_says_nothing(active: Environment) -> None:
    modules = "import sys; print(*sorted(sys.modules))"
    loaded = set(active.prints(modules).split())
    assert "optax_dtypefix" in loaded
    assert not {"jax", "optax", "wrapt", "logging"} & loaded
    active.command("deactivate")
    before = set(active.prints(modules).split())
    ours = {name for name in loaded - before if name.startswith("optax_dtypefix")}
    assert len(ours) <= 10


@pytest.mark.parametrize("variables", one_of(2, [OFF, {"OPTAX_DTYPEFIX_DISABLE": "all"}]))
def test_off_is_stock_optax_without_a_word(made: Environment, variables: dict[str, str]) -> None:
    made.command("activate")
    code = "import optax, sys; print('jax' in sys.modules, type(optax.adam).__name__)"
    assert made.prints(code, **variables) == "True function\n"


def test_if_the_package_goes_the_line_does_nothing(active: Environment) -> None:
    active.parent.unlink()  # It leads to another shim.
    shutil.rmtree(active.shim)
    strict = {"OPTAX_DTYPEFIX_STRICT": "1"}
    assert active.prints(IMPORT, **strict) == "optax\n"
    done = active("-c", "import optax_dtypefix")
    assert "ModuleNotFoundError: No module named 'optax_dtypefix'" in done.stderr


@pytest.mark.thorough
def test_a_copy_of_the_environment_has_its_own_shim(active: Environment, tmp_path: Path) -> None:
    active.parent.unlink()
    shutil.copytree(tmp_path / "environment", tmp_path / "copy", symlinks=True)
    copy = Environment.__new__(Environment)
    for name, path in vars(active).items():
        setattr(copy, name, tmp_path / "copy" / path.relative_to(tmp_path / "environment"))
    code = "import sys; print(sys.modules['optax_dtypefix'].__file__)"
    assert copy.prints(code) == f"{copy.shim / '__init__.py'}\n"


def test_it_refuses_what_is_not_installed(made: Environment) -> None:
    """As in a zip archive, in an unpacked pex, and in a clone that is not installed."""
    made.parent.write_text(f"{sysconfig.get_path('purelib')}\n")  # Without its .pth files.
    elsewhere = made.site.parent / "elsewhere"
    made.shim.rename(elsewhere)
    clone = made.site.parent / "clone"
    clone.mkdir()
    elsewhere.rename(clone / "optax_dtypefix")
    first, other = f"import sys; sys.path.insert(0, {str(clone)!r}); ", made.shim.parent / "other"
    for variables, code, found in (
        ({"PYTHONPATH": str(clone)}, "", "no optax_dtypefix"),
        ({}, first, "no optax_dtypefix"),
        ({}, first, str(other / "optax_dtypefix")),
    ):
        if found != "no optax_dtypefix":
            shutil.copytree(clone, other)
            (made.site / "other.pth").write_text(f"{other}\n")
        main = "from optax_dtypefix._commands.main import main; raise SystemExit(main())"
        done = made("-c", code + main, "activate", **variables)
        assert (done.returncode, done.stdout) == (1, "")
        start = f"optax-dtypefix: Cannot activate {clone / 'optax_dtypefix'}: with {made.file}, "
        assert done.stderr.startswith(f"{start}{made.python} imports {found} when it starts.")
        assert not made.file.exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("option", "there"), [("-I", True), ("-E", True), ("-S", False)])
def test_options_of_python(active: Environment, option: str, there: bool) -> None:
    code = f"import sys; sys.path.append({str(active.site)!r}); import optax"
    found = active.prints(f"{code}; print('optax_dtypefix' in sys.modules)", option, **OFF)
    assert found == f"{there}\n"


@pytest.mark.thorough
def test_a_program_may_import_the_shim_itself(active: Environment) -> None:
    code = "import optax_dtypefix, optax; print(optax.__spec__.loader.__class__.__name__)"
    assert active.prints(code, **OFF) == "SourceFileLoader\n"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OPTAX_DTYPEFIX": "of"}, "OPTAX_DTYPEFIX='of' is not valid"),
        ({"OPTAX_DTYPEFIX_DISABLE": "prodgy", "OPTAX_DTYPEFIX_STRICT": "1"}, "Unknown patch"),
        ({"OPTAX_DTYPEFIX_REQUIRE": "none.json"}, "Cannot read the record"),
    ],
)
def test_a_malformed_setting_stops_programs_with_optax(
    active: Environment, variables: dict[str, str], message: str
) -> None:
    error = f"OptaxDtypeFixError: {message}"
    done = active("-c", "print(1)", **variables)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert f"Error processing line 1 of {active.file}" in done.stderr
    assert error in done.stderr
    for code in ("import optax", "try: import optax\nexcept Exception: import optax"):
        done = active("-c", code, **variables)
        assert done.returncode == 1
        assert error in done.stderr.splitlines()[-1]
    status = active.command("status", **variables)
    assert status.returncode == 2
    assert status.stderr.splitlines()[-1].startswith(f"optax-dtypefix: {message}")


def test_the_console_script_starts_in_an_environment_with_a_malformed_setting(
    active: Environment,
) -> None:
    """At the start of Python, an exit would end it with ``init_import_site`` and a dump."""
    script = active.site.parent / "optax-dtypefix"
    script.write_text("from optax_dtypefix._commands.main import main\nraise SystemExit(main())\n")
    done = active(str(script), "status", OPTAX_DTYPEFIX="of")
    assert done.returncode == 2
    assert "Fatal" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("optax-dtypefix: OPTAX_DTYPEFIX='of' is not ")


def test_an_unknown_id_is_a_warning_in_every_program(active: Environment) -> None:
    done = active("-c", IMPORT, OPTAX_DTYPEFIX_DISABLE="prodgy", **OFF)
    assert (done.returncode, done.stdout) == (0, "optax\n")
    assert "OptaxDtypeFixWarning: Unknown patch 'prodgy'" in done.stderr


@pytest.mark.parametrize("file", ["_settings.py", "__init__.py", "_errors.py"])
def test_python_names_a_damaged_shim_and_goes_on(active: Environment, file: str) -> None:
    (active.shim / file).write_text("raise ImportError('a stray file')")
    done = active("-c", IMPORT)
    assert (done.returncode, done.stdout) == (0, "optax\n")
    assert f"Error processing line 1 of {active.file}" in done.stderr
    assert "ImportError: a stray file" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o775, 0o664), (0o700, 0o600)])
def test_the_file_has_the_mode_of_the_environment(
    made: Environment, folder: int, file: int
) -> None:
    made.site.chmod(folder)
    before = os.umask(0o077)
    try:
        made.command("activate")
    finally:
        os.umask(before)
    assert made.file.stat().st_mode & 0o777 == file


def test_a_required_record_also_refuses_the_switch(active: Environment) -> None:
    record = active.site.parent / "run.json"
    record.write_text(json.dumps({"digest": "a", "applied": ["optax 0.2.8", "fromage"]}))
    done = active("-c", IMPORT, **OFF, OPTAX_DTYPEFIX_REQUIRE=str(record))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"differ from the record {record}" in done.stderr


@pytest.mark.thorough
def test_another_import_hook_that_loads_optax_is_noticed(active: Environment) -> None:
    code = """if True:
        import importlib.machinery, sys
        sys.meta_path.insert(0, importlib.machinery.PathFinder)
        import optax, colorsys
        sys.meta_path.pop(0)
        import this_is_missing
        """
    done = active("-c", code)
    assert "optax is not patched: another import hook" in done.stderr


def test_the_files_of_older_versions_go(made: Environment) -> None:
    old = [made.site / f"optax_dtypefix_activate{end}" for end in (".pth", ".py")]
    for command, is_left in (("activate", True), ("deactivate", False)):
        for path in old:
            path.write_text("# Of 2.0.\n")
        assert made.command(command).returncode == 0
        assert (made.file.exists(), *(path.exists() for path in old)) == (is_left, False, False)


def test_it_refuses_the_file_of_others_and_folders_that_it_cannot_write(made: Environment) -> None:
    made.file.write_text("/a/folder/of/mine\n")
    for command in ("activate", "deactivate"):
        done = made.command(command)
        assert done.returncode == 1
        assert f"optax-dtypefix: {made.file} was not written by this command" in done.stderr
    assert made.file.read_text() == "/a/folder/of/mine\n"


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_a_read_only_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from optax_dtypefix._commands import activate
    from optax_dtypefix._commands.main import main

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(activate.sysconfig, "get_path", lambda _: str(blocked / "site"))
    assert main(["activate"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"optax-dtypefix: cannot write {blocked / 'site' / FILE}: Not a dir")
    assert "Run this as the owner of the environment" in error
    monkeypatch.setattr(activate.sysconfig, "get_path", lambda _: str(tmp_path))
    assert main(["activate"]) == 1  # Python does not read that folder.
    assert f"{tmp_path / FILE}, " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
