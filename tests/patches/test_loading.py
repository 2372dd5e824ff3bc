"""A patch whose file is imported inside a trace changes nothing there, and needs no backend."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import optax_dtypefix
from optax_dtypefix import patches
from optax_dtypefix.patches import catalogue, wrapped
from support.scripts import FROM_ARCHIVES, run, start

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = """
    import contextlib, importlib, re
    import optax_dtypefix, optax
    import jax, jax.numpy as jnp
    from optax_dtypefix._contract.x64 import x64
    from optax_dtypefix.patches import IDS, load

    CONTEXTS = {
        "plain": contextlib.nullcontext,
        "64-bit": x64,
        "strict": lambda: jax.numpy_dtype_promotion("strict"),
        "leaks": jax.checking_leaks,
    }
    FILES = {target.replacement.partition(":")[0] for i in IDS for target in load(i).targets}
    assert FILES.isdisjoint(sys.modules)

    def forget():
        for name in list(sys.modules):
            tables = ("optax_dtypefix.patches.catalogue", "optax_dtypefix.patches.wrapped")
            ours = name.startswith(("optax_dtypefix.patches.", "optax_dtypefix._contract"))
            if ours and name not in tables:
                del sys.modules[name]
                parent, _, part = name.rpartition(".")
                vars(sys.modules.get(parent, sys)).pop(part, None)  # Else they are put back.

    def importing(file):
        def step(x):
            y = jnp.sin(x) * 2
            module = importlib.import_module(file)
            return y + 1
        return step

    def made_of(file):
        return [n for n, v in vars(sys.modules[file]).items() if isinstance(v, jax.Array)]

    x = jax.ShapeDtypeStruct((3,), jnp.bfloat16)
    for name, context in CONTEXTS.items():
        for file in sorted(FILES):
            forget()
            with context():
                first = jax.make_jaxpr(importing(file))(x)
                arrays = made_of(file)
                again = jax.make_jaxpr(importing(file))(x)
                forget()
                jax.eval_shape(jax.jit(importing(file)), x)
            if str(first) != str(again) or arrays or made_of(file):
                print(name, file, arrays, made_of(file))
    print(backends())

    def train(x):
        make = optax.inject_hyperparams(optax.adamw)
        tx = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), make(1e-3)), 2)
        state = tx.init(x)
        updates, state = tx.update(x, state, x)
        return optax.apply_updates(x, updates), state

    def program(x):  # jax 0.4.13 shows addresses.
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(train)(x)))

    for name, context in CONTEXTS.items():
        optax_dtypefix.revert()
        forget()
        optax_dtypefix.apply()
        assert FILES.isdisjoint(sys.modules)
        with context():
            first = program(x)
            assert not FILES.isdisjoint(sys.modules)
            if first != program(x):
                print("train", name)
    print({state.state.value for state in optax_dtypefix.status()} & {"failed", "unsupported"})
    """


@pytest.mark.thorough
def test_an_import_inside_a_trace_changes_nothing_there(tmp_path: Path) -> None:
    assert run(tmp_path, TRACES) == "[]\nset()\n"


BROKEN = """
    import importlib, warnings
    import optax_dtypefix, optax
    from optax_dtypefix._engine.release import Release
    from optax_dtypefix.patches import IDS, load

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name.replace("optax_dtypefix.patches.", "") in {broken}:
                raise ImportError("broken")

    for patch_id in IDS:  # These import some files of patches.
        importlib.import_module(f"optax_dtypefix._diagnosis.faults.{patch_id}")
    for name in [name for name in sys.modules if name.startswith("optax_dtypefix.patches.")]:
        if name.replace("optax_dtypefix.patches.", "") in {broken}:
            del sys.modules[name]
            vars(optax_dtypefix.patches).pop(name.rpartition(".")[2])
    sys.meta_path.insert(0, Broken())
    warnings.simplefilter("ignore")
    for patch_id in IDS:
        for fault in load(patch_id).faults_on(Release(optax.__version__)):
            if optax_dtypefix.status()[patch_id].state == "applied":
                try:
                    fault.reproducer().reproduce(optax)
                except Exception:  # As on stock.
                    pass
    for status in optax_dtypefix.status():
        print(status.id, status.state.value, status.reason)
    """


@pytest.mark.thorough
def test_a_patch_that_is_lost_at_the_first_call_is_said_to_have_failed(tmp_path: Path) -> None:
    script = textwrap.dedent(BROKEN).replace("{broken}", repr((*patches.IDS, "door.lifts")))
    lines = run(tmp_path, script, OPTAX_DTYPEFIX_ENABLE="float32_moments").splitlines()
    said = dict(line.split(" ", 1) for line in lines)
    not_on_this_release = ("not-needed ", "missing ")
    assert {
        patch_id: text
        for patch_id, text in said.items()
        if text != "failed ImportError: broken" and not text.startswith(not_on_this_release)
    } == {}
    assert len(said) == len(patches.IDS)


BUILD = """
    import optax_dtypefix, optax, jax.numpy as jnp
    params = jnp.ones(3, jnp.bfloat16)
    tx = optax.adam(1e-3)
    updates, _ = tx.update(params, tx.init(params), params)
    print(updates.dtype, {s.state.value for s in optax_dtypefix.status()} & {"failed"})
    """


@pytest.mark.thorough
@pytest.mark.parametrize("strict", [False, True])
def test_all_patches_of_a_builder_fail_if_what_lifts_cannot_be_imported(
    tmp_path: Path, strict: bool
) -> None:
    script = """
        import warnings
        import optax_dtypefix, optax
        sys.modules["optax_dtypefix.patches.door.lift"] = None
        warnings.simplefilter("ignore")
        for _ in range(3):
            try:
                tx = optax.scale_by_adam()
            except optax_dtypefix.OptaxDtypeFixError:
                tx = None
            print(tx and tx.update.__code__.co_name)
        print(*[s.id for s in optax_dtypefix.status() if s.state == "failed"])
        """
    patches_of_adam = {"bfloat16_moments", "float16_eps", "promotion"}
    *built, failed = run(tmp_path, script, OPTAX_DTYPEFIX_STRICT=str(int(strict))).splitlines()
    assert built == ["None" if strict else "update_fn"] * 3
    assert set(failed.split()) <= patches_of_adam
    assert strict or set(failed.split()) == patches_of_adam


@pytest.mark.thorough
def test_without_docstrings(tmp_path: Path) -> None:
    if start(tmp_path, "import optax", "-OO").returncode:
        pytest.skip("this jax cannot be imported without docstrings")
    assert run(tmp_path, BUILD, "-OO") == "bfloat16 set()\n"


@pytest.mark.thorough
@FROM_ARCHIVES
def test_from_a_zip_archive(tmp_path: Path) -> None:
    package, ignored = Path(optax_dtypefix.__file__).parent, shutil.ignore_patterns("__pycache__")
    site = tmp_path / "site"
    shutil.copytree(package, site / "optax_dtypefix", ignore=ignored)
    shutil.copytree(
        patches.__path__[0], site / "optax_dtypefix" / "patches", ignore=ignored, dirs_exist_ok=True
    )
    archive = shutil.make_archive(str(tmp_path / "ours"), "zip", site)
    before = f"""
        sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
        sys.path.insert(0, {archive!r})
        """
    after = f"""
        from optax_dtypefix.patches.door import lifts
        print(lifts.__file__.startswith({archive!r}))
        """
    script = "".join(map(textwrap.dedent, (before, BUILD, after)))
    assert run(tmp_path, script) == "bfloat16 set()\nTrue\n"


def literals(file: Path) -> Iterator[object]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.literal_eval(node.value)


def test_the_tables_are_literals() -> None:
    tables = [
        catalogue.PATCHES,
        catalogue.REMOVED,
        catalogue.ABOUT,
        wrapped.MODULES,
        wrapped.WRAPPED,
        wrapped.BUILDERS,
    ]
    found = [v for module in (catalogue, wrapped) for v in literals(Path(str(module.__file__)))]
    assert found == tables


def test_the_layers_of_a_function_stand_in_the_order_of_the_catalogue() -> None:
    for functions in (*wrapped.WRAPPED.values(), wrapped.BUILDERS):
        for name, layers in functions.items():
            ids = [re.split(r"\W", layer)[0] for layer in layers]
            order = [patches.IDS.index(patch_id) for patch_id in ids if patch_id != "door"]
            assert order == sorted(order), name
