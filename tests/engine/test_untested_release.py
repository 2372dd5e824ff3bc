"""On an untested release the probes decide, and the modes that the user set in JAX do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.scripts import run

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
    import json, warnings
    warnings.simplefilter("ignore")
    import jax
    import optax_dtypefix
    from optax_dtypefix._engine import release
    release.installed = lambda *_: release.Release("99.0")
    import optax

    def found():
        return {patch.id: f"{patch.state}: {patch.reason}" for patch in optax_dtypefix.status()}

    results = [found()]
    for mode, value in [
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_numpy_rank_promotion", "raise"),
        ("jax_enable_x64", True),
        ("jax_debug_nans", True),
        ("jax_disable_jit", True),
    ]:
        optax_dtypefix.revert()
        before = getattr(jax.config, mode)
        jax.config.update(mode, value)
        optax_dtypefix.apply()
        assert getattr(jax.config, mode) == value
        jax.config.update(mode, before)
        results.append(found())
    print(json.dumps(results))
    print(backends())
    """


@pytest.mark.thorough
def test_the_modes_of_the_user_do_not_decide(tmp_path: Path) -> None:
    printed = run(tmp_path, SCRIPT).splitlines()
    first, *others = json.loads(printed[0])
    assert sum(text.startswith("applied") for text in first.values()) > 5, first
    for other in others:
        assert other == first
    assert printed[1] == "[]"
