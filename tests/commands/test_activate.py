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
from optax_dtypefix._commands.activate import FILE
from support.processes import environment, write_script

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
        (self.site / "zz_parent.pth").write_text(parent)
        self.file = self.site / FILE
        self.code = self.file.with_suffix(".py")

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

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self("-m", "optax_dtypefix", *arguments)

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


def test_activate_status_and_deactivate(made: Environment) -> None:
    assert "Not active" in made.command("deactivate").stdout
    for options in ((), ("--strict",)):  # The second time it only writes the file again.
        done = made.command("activate", *options)
        assert done.stdout.startswith(f"Wrote {made.file}\n"), done.stderr
    status = made("-m", "optax_dtypefix", "status", "--json", OPTAX_DTYPEFIX_ONLY="fromage")
    assert list(json.loads(status.stdout)["active_files"]) == [str(made.file)]
    (who,) = json.loads(status.stdout)["active_files"].values()
    assert who.startswith(f"Written by optax-dtypefix {optax_dtypefix.__version__} for ")
    assert who.endswith(", strict.")

    write_script(
        made.site.parent,
        """
        import multiprocessing, subprocess, sys

        def state(_=None):
            import os, optax, sys  # It forgot the shim.
            shim = sys.modules["optax_dtypefix"]
            strict = shim._settings.SETTINGS.strict, "OPTAX_DTYPEFIX_STRICT" in os.environ
            return str(shim.status()["fromage"].state), *strict

        if __name__ == "__main__":
            code = "import script; print(script.state())"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout.decode())
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(state, [0]))
        """,
    )
    children = made("script.py", OPTAX_DTYPEFIX_ONLY="fromage")
    state = ("applied", True, False)
    assert children.stdout == f"{state}\n\n{[state]}\n", children.stderr

    assert made.command("deactivate").stdout == f"Removed {made.file} and {made.code}\n"
    assert not list(made.site.glob("**/*dtypefix_activate*"))
    assert made.prints("import sys; print('optax_dtypefix' in sys.modules)") == "False\n"


def test_it_imports_the_shim_alone_before_optax(active: Environment) -> None:
    modules = "import sys; print(*sorted(sys.modules))"
    loaded = set(active.prints(modules).split())
    assert "optax_dtypefix" in loaded
    assert not {"jax", "optax", "wrapt", "logging"} & loaded
    active.command("deactivate")
    before = set(active.prints(modules).split())
    ours = {name for name in loaded - before if name.startswith("optax_dtypefix")}
    assert len(ours) <= 10


def test_the_files_can_be_read_and_name_no_folder(made: Environment) -> None:
    made.command("activate", "--strict")
    mark, who, line = made.file.read_text().splitlines()
    made.file.write_text(f"{mark}\n{who}\nimport sys; exec('pass')\n")  # As 1.2.0 wrote it.
    made.command("activate", "--strict")
    assert made.file.read_text().splitlines()[2:] == [line]
    assert line == "import optax_dtypefix_activate"
    code = made.code.read_text()
    assert code.startswith(f"{mark}\n{who}\n")
    startup = (made.shim / "_startup" / "optax_dtypefix_startup.py").read_text()
    assert code.endswith(f"{startup}\n\nimport_at_start(__file__, strict=True)\n")
    assert str(made.site.parent) not in code


@pytest.mark.thorough
def test_a_copy_of_the_environment_has_its_own_shim(active: Environment, tmp_path: Path) -> None:
    (active.site / "zz_parent.pth").unlink()
    shutil.copytree(tmp_path / "environment", tmp_path / "copy", symlinks=True)
    copy = Environment.__new__(Environment)
    for name, path in vars(active).items():
        setattr(copy, name, tmp_path / "copy" / path.relative_to(tmp_path / "environment"))
    code = "import sys; print(sys.modules['optax_dtypefix'].__file__)"
    assert copy.prints(code) == f"{copy.shim / '__init__.py'}\n"
    shutil.rmtree(copy.shim)
    done = copy("-c", "import optax, sys; print('optax_dtypefix' in sys.modules)")
    assert done.stdout == "False\n"
    assert done.stderr.endswith(f"or delete {copy.file} and {copy.code}\n")
    done = copy("-c", "import optax_dtypefix")
    assert "ModuleNotFoundError: No module named 'optax_dtypefix'" in done.stderr


def test_it_refuses_what_python_does_not_find_when_it_starts(made: Environment) -> None:
    """As in a zip archive, in an unpacked pex, and in a clone that is not installed."""
    elsewhere = made.site.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(made.shim, elsewhere / "optax_dtypefix")
    main = "from optax_dtypefix._commands.main import main; raise SystemExit(main(['activate']))"
    code = f"import sys; sys.path.insert(0, {str(elsewhere)!r}); {main}"
    start = f"optax-dtypefix: Cannot activate {elsewhere / 'optax_dtypefix'}: "
    done = made("-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{start}{made.python} finds {made.shim} when it starts.")
    shutil.rmtree(made.shim)
    (made.site / "zz_parent.pth").write_text(f"{elsewhere.parent}\n")  # Without the tests' shim.
    code = code.replace(main, f"sys.path.append({sysconfig.get_path('purelib')!r}); {main}")
    done = made("-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{start}{made.python} does not find it when it starts. Install ")
    assert not list(made.site.glob("*dtypefix_activate*"))


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_it_refuses_a_clone_that_others_may_write(made: Environment) -> None:
    clone = made.site.parent / "clone"
    clone.mkdir()
    clone.chmod(0o777)
    shim = made.shim.rename(clone / "optax_dtypefix")
    (made.site / "zz_clone.pth").write_text(f"{clone}\n")
    done = made.command("activate")
    assert (done.returncode, done.stdout) == (1, "")
    start = f"optax-dtypefix: Cannot activate {shim}: every user may write {clone}, and so run code"
    assert done.stderr.startswith(start)
    assert not list(made.site.glob("*dtypefix_activate*"))


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_who_else_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from optax_dtypefix._commands import activate

    folder, file = tmp_path / "clone" / "package", tmp_path / "clone" / "package" / "code.py"
    folder.mkdir(parents=True)
    file.touch()
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert {folder, file, folder.parent, tmp_path} <= set(activate._what_python_reads(folder))
    assert {link, link / "code.py", tmp_path, folder.parent} <= {*activate._what_python_reads(link)}
    for mode, who in ((0o644, ""), (0o664, ""), (0o646, "every user")):
        file.chmod(mode)
        assert activate._who_else_may_write(file) == who
    file.chmod(0o644)
    owner = os.geteuid() or 12345
    if os.geteuid() == 0:
        os.chown(file, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert activate._who_else_may_write(file) == f"uid {owner}"


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


def test_a_malformed_variable_concerns_only_programs_with_optax(active: Environment) -> None:
    bad = {"OPTAX_DTYPEFIX": "of", "OPTAX_DTYPEFIX_DISABLE": "prodgy"}
    assert active.prints("print(1)", **bad) == "1\n"
    done = active("-c", "import optax", **bad)
    assert done.returncode == 1
    _, users, ours, error = [line for line in done.stderr.splitlines() if "    " not in line]
    assert users == '  File "<string>", line 1, in <module>'
    assert ours == '  File "<optax is not patched>", line 1, in <module>'
    assert "OptaxDtypeFixError: OPTAX_DTYPEFIX='of' is not valid" in error
    unknown = {"OPTAX_DTYPEFIX_DISABLE": "prodgy", **OFF}
    assert "OptaxDtypeFixWarning: Unknown patch" in active("-c", "import optax", **unknown).stderr


BREAKAGES = {
    "_settings.py": "raise (",
    "__init__.py": "raise ImportError('a stray file')",
    "_errors.py": "raise (",
    "": "",  # The package is gone.
}


def damage(made: Environment, file: str) -> None:
    if file:
        (made.shim / file).write_text(BREAKAGES[file])
    else:
        shutil.rmtree(made.shim)
        (made.site / "zz_parent.pth").unlink()  # It may lead to another shim.


def advice(made: Environment, file: str) -> str:
    if file:
        return ". For the traceback, run `python -m optax_dtypefix status`."
    return f". Install optax-dtypefix again, or delete {made.file} and {made.code}"


IMPORT = "import optax; print(optax.__name__)"
REQUIRE = {"OPTAX_DTYPEFIX_REQUIRE": "none.json"}


@pytest.mark.parametrize("file", BREAKAGES)
def test_a_damaged_shim_leaves_stock_optax_and_says_so(active: Environment, file: str) -> None:
    damage(active, file)
    assert active.prints("print(1)") == "1\n"
    assert active.prints(IMPORT, **OFF) == "optax\n"
    done = active("-c", IMPORT)
    assert (done.returncode, done.stdout) == (0, "optax\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("optax-dtypefix: optax is not patched: ")
    assert line.endswith(advice(active, file))
    for variables in ({"OPTAX_DTYPEFIX_STRICT": "1"}, REQUIRE, {**REQUIRE, **OFF}):
        done = active("-c", IMPORT, **variables)
        assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("file", BREAKAGES)
def test_a_strict_environment_refuses_stock_optax(active: Environment, file: str) -> None:
    active.command("activate", "--strict")
    damage(active, file)
    assert active.prints("print(1)") == "1\n"
    for options in ((), ("-I",)):
        done = active(*options, "-c", IMPORT)
        assert (done.returncode, done.stdout) == (1, "")
        error = done.stderr.splitlines()[-1]
        assert error.startswith("RuntimeError: optax is not patched: ")
        assert error.endswith(advice(active, file))
    assert active.prints(IMPORT, **OFF) == "optax\n"
    not_strict = active("-c", IMPORT, OPTAX_DTYPEFIX_STRICT="0")
    assert (not_strict.returncode, not_strict.stdout) == (0, "optax\n")
    assert not_strict.stderr.startswith("optax-dtypefix: optax is not patched: ")


@pytest.mark.parametrize("file", ["_settings.py", ""])
def test_a_strict_environment_refuses_the_import_and_not_the_question(
    active: Environment, file: str
) -> None:
    active.command("activate", "--strict")
    damage(active, file)
    asks = (
        "import importlib.util as u; print(u.find_spec('json').name, u.find_spec('optax').origin)"
    )
    answer = f"json {active.site / 'optax' / '__init__.py'}\n"
    assert active.prints(asks) == answer
    done = active("-c", f"{asks}\ntry: import optax\nexcept Exception: print('no')\nimport optax")
    assert (done.returncode, done.stdout) == (1, f"{answer}no\n")
    recursive = """if True:
        import sys
        class AsksAll:
            def find_spec(self, *name):
                found = (other.find_spec(*name) for other in sys.meta_path if other is not self)
                return next(filter(None, found), None)
        sys.meta_path.insert(1, AsksAll())
        """
    done = active("-c", f"{recursive}\n{asks}\nimport optax")
    assert (done.returncode, done.stdout) == (1, answer)
    assert "RecursionError" not in done.stderr


@pytest.mark.parametrize("file", ["_settings.py", ""])
def test_a_strict_environment_does_not_claim_that_there_is_an_optax(
    active: Environment, file: str
) -> None:
    active.command("activate", "--strict")
    damage(active, file)
    shutil.rmtree(active.site / "optax")
    (active.site / "zz_parent.pth").unlink(missing_ok=True)
    asks = "import importlib.util as u; print(u.find_spec('optax'))"
    assert active.prints(asks) == "None\n"
    done = active("-c", "import optax")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'optax'"


@pytest.mark.thorough
@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o775, 0o664), (0o700, 0o600)])
def test_the_file_has_the_mode_of_the_environment(
    made: Environment, folder: int, file: int
) -> None:
    made.site.chmod(folder)
    before = os.umask(0o077)
    try:
        made.command("activate", "--strict")
    finally:
        os.umask(before)
    assert made.file.stat().st_mode & 0o777 == file


def test_status_names_a_file_that_python_cannot_read(made: Environment) -> None:
    made.fake_optax()
    made.file.mkdir()  # Root can read any file.
    status = made.command("status")
    assert f"Not active in the Pythons of this environment, by {made.file}\n" in status.stdout
    assert "\nIt cannot be read (" in status.stdout
    assert status.stdout.endswith("): this Python runs stock optax.\n")
    (why,) = json.loads(made.command("status", "--json").stdout)["active_files"].values()
    assert why.startswith("It cannot be read (")


@pytest.mark.parametrize("file", ["_settings.py", ""])
def test_a_damaged_shim_is_named_if_optax_is_imported_before(
    active: Environment, file: str
) -> None:
    damage(active, file)
    (active.site / "aa_first.pth").write_text("import optax\n")
    done = active("-c", "print(1)")
    assert done.stdout == "1\n"
    assert f"Error processing line 3 of {active.file}" in done.stderr


@pytest.mark.parametrize("variables", [{}, {"OPTAX_DTYPEFIX_DISABLE": "prodgy"}])
def test_a_shim_that_python_finds_later_patches_after_all(
    active: Environment, variables: dict[str, str]
) -> None:
    """Python reads the site-packages of a base environment after those of this one."""
    active.command("activate", "--strict")
    later = active.site.parent / "later"
    later.mkdir()
    active.shim.rename(later / "optax_dtypefix")
    (active.site / "zz_later.pth").write_text(f"{later}\n")
    loaded = "import sys; print('optax_dtypefix' in sys.modules)"
    assert active.prints(loaded) == "False\n"
    done = active("-c", f"import optax; {loaded}", **OFF, **variables)
    if variables:  # The environment is still strict.
        assert "OptaxDtypeFixError: Unknown patch 'prodgy'" in done.stderr.splitlines()[-1]
    else:
        assert (done.stdout, done.stderr) == ("True\n", "")


def test_in_a_strict_environment_variables_are_read_strictly(active: Environment) -> None:
    active.command("activate", "--strict")
    unknown = {**OFF, "OPTAX_DTYPEFIX_DISABLE": "prodgy"}
    done = active("-c", IMPORT, **unknown)
    assert done.returncode == 1
    user, ours = done.stderr.splitlines()[1], done.stderr.splitlines()[-1]
    assert user.endswith(", line 1, in <module>")
    assert "OptaxDtypeFixError: Unknown patch 'prodgy' in OPTAX_DTYPEFIX_DISABLE." in ours
    for strict in ("0", ""):
        done = active("-c", IMPORT, **unknown, OPTAX_DTYPEFIX_STRICT=strict)
        assert done.returncode == (strict == "")
    kept = "import os; print(repr(os.environ.get('OPTAX_DTYPEFIX_STRICT')))"
    for variables, printed in (({}, "None"), ({"OPTAX_DTYPEFIX_STRICT": ""}, "''")):
        assert active.prints(kept, **variables) == f"{printed}\n"


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


def test_it_refuses_the_file_of_others_and_folders_that_it_cannot_write(made: Environment) -> None:
    for file in (made.code, made.file):
        file.write_text("import this\n")
        for command in ("activate", "deactivate"):
            done = made.command(command)
            assert done.returncode == 1
            assert f"optax-dtypefix: {file} was not written by this command." in done.stderr
        assert file.read_text() == "import this\n"


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_a_read_only_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from optax_dtypefix._commands import activate
    from optax_dtypefix._commands.main import main

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(activate, "_who_else_may_write", lambda _: "")  # Of the tests' clone.
    code = blocked / "site" / FILE.replace(".pth", ".py")
    monkeypatch.setattr(activate.sysconfig, "get_path", lambda _: str(blocked / "site"))
    assert main(["activate"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"optax-dtypefix: cannot write {code}: Not a dir")
    assert "Run this as the owner of the environment" in error
    monkeypatch.setattr(activate.sysconfig, "get_path", lambda _: str(tmp_path))
    assert main(["activate"]) == 1  # Python does not read that folder.
    assert f"does not read {tmp_path} when it starts" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
