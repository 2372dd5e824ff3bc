"""Two processes on localhost that communicate through CPU collectives, as two hosts do."""

from __future__ import annotations

import socket
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import jax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix._multihost import _own, differences_of
from support.processes import QUICKLY, finish, start, write_script

if TYPE_CHECKING:
    from pathlib import Path

needs_collectives = pytest.mark.skipif(
    Version(jax.__version__) < Version("0.5.0"),
    reason="older jax has no default collectives between processes on CPU",
)

PRELUDE = """
    import sys
    import optax_dtypefix
    import jax
    jax.distributed.initialize("localhost:" + sys.argv[1], 2, int(sys.argv[2]))
"""


def run(folder: Path, script: str, *variables: dict[str, str]) -> list[Any]:
    """Run a script in one process for each set of variables."""
    path = write_script(folder, textwrap.dedent(PRELUDE) + textwrap.dedent(script))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    running = [
        start(path, port, str(index), folder=folder, **QUICKLY, **own)
        for index, own in enumerate(variables)
    ]
    return [
        (done.returncode, "".join(own_lines(done.stdout)), done.stderr)
        for done in finish(running, timeout=120)
    ]


def own_lines(text: str) -> list[str]:
    """Return the lines that the collectives library did not print."""
    return [line for line in text.splitlines(keepends=True) if not line.startswith("[Gloo]")]


ASSERT = """
    try:
        optax_dtypefix.assert_same_on_all_processes()
    except optax_dtypefix.OptaxDtypeFixError as error:
        print(error)
    else:
        print("the same")
"""


@pytest.mark.thorough
@needs_collectives
def test_what_will_be_applied_is_compared(tmp_path: Path) -> None:
    """The program has not imported optax yet. A patch that is off anyway is no difference."""
    variables = {
        "OPTAX_DTYPEFIX_DISABLE": "multi_steps,float32_averages",
        "OPTAX_DTYPEFIX_ENABLE": "float32_moments",
    }
    for code, stdout, stderr in run(tmp_path, ASSERT, {}, variables):
        assert code == 0, stderr
        assert [line for line in stdout.splitlines() if line.startswith("  ")] == [
            "  patch multi_steps: process 0: applied; process 1: disabled (switched off by "
            "OPTAX_DTYPEFIX_DISABLE)",
            "  patch float32_moments: process 0: disabled (opt-in: add it to "
            "OPTAX_DTYPEFIX_ENABLE); process 1: applied",
        ]


@pytest.mark.thorough
@needs_collectives
def test_no_process_waits_for_one_in_which_optax_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"applied": ["optax 0.0"]}')
    required = {"OPTAX_DTYPEFIX_REQUIRE": "run.json"}
    for code, stdout, stderr in run(tmp_path, ASSERT, {}, required):
        assert code == 0, stderr
        why = "import optax: process 0: works; process 1: OptaxDtypeFixError: The packages or"
        assert why in stdout
    for code, stdout, stderr in run(tmp_path, ASSERT, required, required):
        assert code == 0, stderr
        assert stdout.startswith("The packages or patches differ from the record ")


@needs_collectives
def test_two_processes_are_the_same_and_a_train_step_agrees_with_one(tmp_path: Path) -> None:
    """Train data-parallel: each process has half of the batch, and the mean is over both."""
    script = """
        import jax.numpy as jnp
        import numpy as np
        import optax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        tx = optax.MultiSteps(optax.adafactor(0.1), 2)
        batch = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)

        def step(params, state, batch):
            grads = jax.grad(lambda p: jnp.mean((batch @ p - 1) ** 2).astype(jnp.float32))(params)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        def train(batch):
            params = jnp.full((8, 4), 0.1, jnp.bfloat16)
            state = tx.init(params)
            for _ in range(4):
                params, state = jax.jit(step)(params, state, batch)
            return params

        mesh = Mesh(np.asarray(jax.devices()), ("data",))
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        own = batch[2 * jax.process_index() :][:2]
        together = train(jax.make_array_from_process_local_data(sharding, own))
        got = np.asarray(together.addressable_data(0), np.float32)
        np.testing.assert_allclose(got, np.asarray(train(batch), np.float32), rtol=2**-7)
        assert not np.allclose(got, 0.1)
        print("agrees")
    """
    for code, stdout, stderr in run(
        tmp_path, textwrap.dedent(ASSERT) + textwrap.dedent(script), {}, {}
    ):
        assert (code, stdout) == (0, "the same\nagrees\n"), stderr


def test_one_process_has_nothing_to_compare() -> None:
    optax_dtypefix.assert_same_on_all_processes()


def test_each_difference_is_listed_once_with_its_processes() -> None:
    same = {"optax": ("0.2.3", "0.2.3"), "patch prodigy": ("True", "applied")}
    other = {**same, "optax": ("0.2.5", "0.2.5")}
    assert list(differences_of([same] * 3)) == []
    (line,) = differences_of([same, other, *[same] * 6])
    assert line == "  optax: processes 0, 2, 3, 4 and 3 more: 0.2.3; process 1: 0.2.5"
    (line,) = differences_of([same, {"optax": ("0.2.3", "0.2.3")}])
    assert line == "  patch prodigy: process 0: applied; process 1: unknown"


def test_a_patch_that_is_off_for_another_reason_is_no_difference() -> None:
    off = [("False", f"disabled ({reason})") for reason in ("opt-in", "switched off")]
    assert list(differences_of([{"patch prodigy": found} for found in off])) == []
    waits = ("True", "pending (optax.contrib is not imported yet)"), ("True", "applied")
    assert list(differences_of([{"patch prodigy": found} for found in waits])) == []


def test_a_file_that_fails_when_it_is_needed_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one process runs stock from its first step on, and waits for the others forever."""
    good = _own(None)
    name = "optax_dtypefix.patches.door.range"
    monkeypatch.setitem(sys.modules, name, None)
    (line,) = differences_of([good, _own(None)])
    assert line.startswith("  import of files: process 0: works; process 1: " + name)
