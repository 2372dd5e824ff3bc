"""A pickle of what a process without patches built is stock, and is said to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optax
import pytest

from support.processes import CACHE, PATCHED, QUICKLY, STOCK, run, stdout_of, write_script

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

WRITE = """
    import sys, warnings
    warnings.simplefilter("ignore")
    import optax_dtypefix, cloudpickle, optax
    inject = optax.inject_hyperparams(optax.adamw)
    transformations = {
        "inject": inject(1e-3),
        "chain": optax.chain(optax.clip(1.0), inject(1e-3)),
        "adam": optax.adam(1e-3),
    }
    if hasattr(optax, "contrib") and hasattr(optax.contrib, "schedule_free_adamw"):
        transformations["free"] = optax.contrib.schedule_free_adamw(1e-3)
    if hasattr(optax, "lbfgs"):
        transformations["lbfgs"] = optax.lbfgs()
    for name, tx in transformations.items():
        open(name, "wb").write(cloudpickle.dumps(tx))
    """
LOAD = """
    import pickle, sys
    import optax_dtypefix, optax, jax, jax.numpy as jnp
    params = jnp.ones(3, jnp.bfloat16)
    tx = pickle.load(open(sys.argv[1], "rb"))  # The line of the warning.
    print(str(optax_dtypefix.check(tx, params)).splitlines()[0])
    updates, _ = tx.update(params, tx.init(params), params)
    print(jnp.isnan(updates).any())
    """
SAID = {"inject": "inject_hyperparams", "chain": "inject_hyperparams", "free": "schedule_free"}
STAYS = "built before the patches were applied, or by a process without them, so still stock: "

NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name == "free" and not hasattr(getattr(optax, "contrib", None), "schedule_free_adamw"),
            reason="this release has no schedule_free_adamw",
        ),
    )
    for name in SAID
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write pickles in a stock and in a patched process."""
    folder = tmp_path_factory.mktemp("pickles")
    for name, variables in (("stock", STOCK), ("patched", PATCHED)):
        (folder / name).mkdir()
        script = write_script(folder, WRITE, "write.py")
        stdout_of(run(script, folder=folder / name, **variables))
    write_script(folder, LOAD, "load.py")
    return folder


def load(folder: Path, path: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(folder / "load.py", path, folder=folder, **{**CACHE, **QUICKLY, **variables})


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_warning_and_check_say_that_it_is_stock(folder: Path, name: str) -> None:
    done = load(folder, f"stock/{name}")
    said, is_nan = stdout_of(done).splitlines()
    assert said == f"{STAYS}{SAID[name]}"
    assert is_nan == str(name != "free")
    lines = done.stderr.splitlines()
    ((number, warning),) = ((i, x) for i, x in enumerate(lines) if "OptaxDtypeFixWarning: " in x)
    assert f"without patches built, and that stays stock: {SAID[name]}. Build it" in warning
    assert "# The line of the warning." in lines[number + 1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_strict_mode_refuses_to_load_it(folder: Path, name: str) -> None:
    done = load(folder, f"stock/{name}", OPTAX_DTYPEFIX_STRICT="1")
    assert done.returncode == 1
    assert f"that stays stock: {SAID[name]}. Build it again" in done.stderr.splitlines()[-1]
    off = {"OPTAX_DTYPEFIX_STRICT": "1", "OPTAX_DTYPEFIX_DISABLE": "inject_hyperparams"}
    if name == "inject":
        assert STAYS not in stdout_of(load(folder, f"stock/{name}", **off))


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["stock/adam", "patched/inject", "patched/chain", "patched/adam"])
def test_what_is_patched_when_loaded_is_not_said(folder: Path, path: str) -> None:
    done = load(folder, path, OPTAX_DTYPEFIX_STRICT="1")
    said, is_nan = stdout_of(done).splitlines()
    assert STAYS not in said
    assert is_nan == "False"


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(optax, "lbfgs"), reason="this release has no lbfgs")
def test_a_line_search_of_a_patched_process_is_not_said(folder: Path) -> None:
    """Stock built the default search of ``lbfgs`` when optax was imported."""
    load_it = """
        import pickle, sys
        import optax_dtypefix, optax, jax, jax.numpy as jnp
        params = jnp.ones(3)
        tx = pickle.load(open(sys.argv[1], "rb"))
        given = dict(value=jnp.sum(params**2), grad=2 * params, value_fn=lambda p: jnp.sum(p**2))
        print(optax_dtypefix.check(tx, params, **given).built_before)
        print(any(leaf.weak_type for leaf in jax.tree_util.tree_leaves(tx.init(params))))
        """
    script = write_script(folder, load_it, "load_lbfgs.py")
    strict = {"OPTAX_DTYPEFIX_STRICT": "1", **CACHE, **QUICKLY}
    done = run(script, "patched/lbfgs", folder=folder, **strict)
    assert stdout_of(done).splitlines() == ["()", "False"]
    done = run(script, "stock/lbfgs", folder=folder, **CACHE, **QUICKLY)
    assert "that stays stock: zoom_linesearch. Build it again" in done.stderr
    assert stdout_of(done).splitlines() == ["('zoom_linesearch',)", "True"]
