"""Commands of a zipapp read their files from the archive, or say what to do."""

from __future__ import annotations

import shutil
import zipapp
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import optax_dtypefix
from support.processes import Python
from support.scripts import FROM_ARCHIVES

if TYPE_CHECKING:
    from typing import Any

pytestmark = FROM_ARCHIVES


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: Any) -> Python:
    """Run the command of an archive."""
    folder = tmp_path_factory.mktemp("zipapp")
    ignored = shutil.ignore_patterns("__pycache__", "patches")
    package = folder / "app" / "optax_dtypefix"
    shutil.copytree(optax_dtypefix.__path__[0], package, ignore=ignored)
    shutil.copytree(optax_dtypefix.patches.__path__[0], package / "patches", ignore=ignored)
    main = "from optax_dtypefix._commands.main import main; raise SystemExit(main())\n"
    (folder / "app" / "__main__.py").write_text(main)
    zipapp.create_archive(folder / "app", folder / "app.pyz")
    shutil.rmtree(folder / "app")
    return Python(folder, ("app.pyz",))


def test_scan_and_run(zipped: Python) -> None:
    (zipped.folder / "train.py").write_text(
        "import optax, sys\nprint(sys.modules['optax_dtypefix'].__file__)\ntx = optax.adam(1.0)\n"
    )
    scan = zipped("scan", "train.py", "--optax", "0.2.3")
    assert scan.returncode == 1
    assert "train.py:3: optax.adam: faults in bfloat16" in scan.stdout
    run = zipped("run", "train.py", OPTAX_DTYPEFIX_ONLY="fromage")
    archive = Path(zipped.folder, "app.pyz", "optax_dtypefix", "__init__.py")
    assert (run.stdout, run.stderr) == (f"{archive}\n", "")


def test_activate_is_refused(zipped: Python) -> None:
    done = zipped("activate")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("optax-dtypefix: Cannot activate ")
    assert "app.pyz/optax_dtypefix: with " in done.stderr
