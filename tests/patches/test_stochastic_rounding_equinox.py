"""``equinox.apply_updates`` rounds as ``optax.apply_updates`` does, where equinox is imported."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import jax
import pytest
from packaging.version import Version

from support.processes import STOCK
from support.scripts import run
from support.thorough import one_of

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("equinox")

STEPS = """
    import hashlib
    import jax, jax.numpy as jnp, numpy as np

    def model_of(dtype):
        mlp = eqx.nn.MLP(8, 8, 16, 1, key=jax.random.PRNGKey(0))
        return jax.tree_util.tree_map(
            lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, mlp
        )

    def trained(dtype, jit=lambda function: function, rate=2.0**-12, steps=20):
        @jit
        def step(model, state):
            grads = jax.tree_util.tree_map(
                lambda leaf: 1 + leaf * 2.0**-6, eqx.filter(model, eqx.is_inexact_array)
            )
            updates, state = tx.update(grads, state)
            return eqx.apply_updates(model, updates), state

        tx = optax.sgd(lambda _: rate)  # A schedule counts the steps.
        model = model_of(dtype)
        state = tx.init(eqx.filter(model, eqx.is_inexact_array))
        for _ in range(steps):
            model, state = step(model, state)
        return model

    def arrays(model):
        leaves = jax.tree_util.tree_leaves(eqx.filter(model, eqx.is_array))
        return [np.asarray(leaf) for leaf in leaves]

    def moved(dtype, **options):
        def total(model):
            return sum(leaf.astype(np.float64).sum() for leaf in arrays(model))
        count = sum(leaf.size for leaf in arrays(model_of(dtype)))
        return (total(trained(dtype, **options)) - total(model_of(dtype))) / count

    def digest(*models):
        data = b"".join(leaf.tobytes() for model in models for leaf in arrays(model))
        return hashlib.sha256(data).hexdigest()
    """

ORDERS = {
    "shim first": """
        import optax_dtypefix as shim
        import optax
        assert "equinox" not in sys.modules
        import equinox as eqx
        from equinox import apply_updates
        """,
    "equinox first": """
        import equinox as eqx
        from equinox import apply_updates
        import optax_dtypefix as shim
        import optax
        """,
    "shim last": """
        import equinox as eqx, optax
        from equinox import apply_updates
        import optax_dtypefix as shim
        """,
    "equinox alone": """
        import optax_dtypefix as shim
        import equinox as eqx
        from equinox import apply_updates
        assert "optax" not in sys.modules and stock(apply_updates)
        import optax
        """,
}


def outcome(folder: Path, start: str, script: str, **variables: str) -> str:
    """Run a script, in strict mode and with warnings as errors, and return what it prints."""
    text = "".join(map(textwrap.dedent, (start, STEPS, script)))
    variables = {"OPTAX_DTYPEFIX_STRICT": "1", **variables}
    return run(folder, text, "-W", "error::UserWarning", **variables)


@pytest.mark.skipif(
    Version(jax.__version__) < Version("0.4.31"),
    reason="jax.clear_caches() ends the process, after a filter_jit whose function is gone",
)
@pytest.mark.parametrize("order", one_of(4, ORDERS))
def test_it_is_patched_in_any_order_of_imports(order: str, tmp_path: Path) -> None:
    script = """
        path = "equinox._update:apply_updates"
        row = shim.status()["stochastic_rounding"]
        assert row.state == "applied" and path in row.targets, row
        assert not backends()
        assert eqx.apply_updates is apply_updates is eqx._update.apply_updates
        far = moved(jnp.bfloat16, jit=eqx.filter_jit)
        assert abs(far / (-20 * 2.0**-12) - 1) < 0.1, far
        shim.revert()
        assert stock(eqx.apply_updates) and stock(apply_updates)
        shim.apply()
        assert not stock(eqx.apply_updates) and not stock(apply_updates)
        print(shim.status()["stochastic_rounding"].reached, shim.status().notes)
        """
    assert outcome(tmp_path, ORDERS[order], script) == "1 []\n"


@pytest.mark.thorough
def test_eager_steps_are_rounded_unless_the_patch_is_off(tmp_path: Path) -> None:
    script = """
        with shim.disabled():
            still = moved(jnp.bfloat16)
        far = moved(jnp.bfloat16)
        assert still > -0.6 * 20 * 2.0**-12, still
        assert abs(far / (-20 * 2.0**-12) - 1) < 0.1, far
        shim.revert()
        assert moved(jnp.bfloat16) == still
        shim.apply()
        assert moved(jnp.bfloat16) == far
        print(shim.status()["stochastic_rounding"].reached > 20, shim.status().notes)
        """
    assert outcome(tmp_path, ORDERS["shim first"], script) == "True []\n"


@pytest.mark.thorough
def test_without_equinox_the_patch_is_applied(tmp_path: Path) -> None:
    script = """
        import optax_dtypefix as shim
        import optax
        shim.apply()
        row = shim.status()["stochastic_rounding"]
        print(row.state, "equinox" in sys.modules, [t for t in row.targets if "equinox" in t])
        """
    for blocked in ("", "sys.modules['equinox'] = None\n"):
        text = blocked + textwrap.dedent(script)
        expected = f"applied {bool(blocked)} []\n"
        # Old versions of jax and packaging use what is deprecated.
        options = ("-W", "error", "-W", "ignore::DeprecationWarning")
        assert run(tmp_path, text, *options, OPTAX_DTYPEFIX_STRICT="1") == expected


# What equinox.apply_updates takes, and optax.apply_updates does not.
MODEL = """
    class Model(eqx.Module):
        table: jax.Array
        indices: jax.Array
        frozen: eqx.nn.Linear
        layers: list
        number: float
        own: object
        name: str = eqx.field(static=True)

    def tree(dtype):
        linear = eqx.nn.Linear(4, 4, key=jax.random.PRNGKey(1))
        linear = jax.tree_util.tree_map(lambda leaf: jnp.ones_like(leaf, dtype), linear)
        own = np.ones(3, jnp.bfloat16)  # NumPy adds it up.
        return Model(jnp.ones((16, 8), dtype), jnp.arange(3), linear, [linear, jax.nn.relu, None],
                     2.0, own, "name")

    def updates_of(model):
        updates = jax.tree_util.tree_map(
            lambda leaf: leaf * 0.001 if eqx.is_inexact_array_like(leaf) else None, model
        )
        return eqx.tree_at(lambda m: m.frozen, updates, None)

    def described(model):
        return [
            (type(leaf).__name__, str(getattr(leaf, "dtype", "")), np.shape(leaf))
            for leaf in jax.tree_util.tree_leaves(model)
        ]
    """


@pytest.mark.thorough
def test_a_model_with_other_leaves(tmp_path: Path) -> None:
    script = """
        found = []
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
            model = tree(dtype)
            updates = updates_of(model)
            for function in (eqx.apply_updates, eqx.filter_jit(eqx.apply_updates)):
                after = function(model, updates)
                assert jax.tree_util.tree_structure(after) == jax.tree_util.tree_structure(model)
                assert after.layers[1] is jax.nn.relu and after.layers[2] is None
                found.append(described(after))
                exact = [after.indices, *arrays(after.frozen), after.number, after.own]
                found += [np.asarray(leaf, np.float64).tolist() for leaf in exact]
                if dtype == jnp.float32:
                    found.append(digest(after))
            after = eqx.apply_updates(model, updates)
            assert after.frozen is model.frozen and after.indices is model.indices
            move = float(after.table.astype(jnp.float32).mean()) - 1
            if dtype == jnp.bfloat16:
                assert (0.0002 < move < 0.0018) if PATCHED else move == 0, move
        print(found)
        """
    outcomes = [
        outcome(
            tmp_path,
            ORDERS["shim first"],
            f"PATCHED = {not v}\n{textwrap.dedent(MODEL)}" + textwrap.dedent(script),
            **v,
        )
        for v in ({}, STOCK)
    ]
    assert outcomes[0] == outcomes[1]


@pytest.mark.thorough
def test_other_dtypes_prefixes_and_errors_are_stock_s(tmp_path: Path) -> None:
    script = """
        models = [trained(jnp.float32), trained(jnp.float32, jit=eqx.filter_jit)]
        half = model_of(jnp.bfloat16)
        wide = jax.tree_util.tree_map(
            lambda leaf: jnp.full(leaf.shape, 2.0**-10, jnp.float32), eqx.filter(half, eqx.is_array)
        )
        models.append(eqx.apply_updates(half, wide))
        print([str(leaf.dtype) for leaf in arrays(models[-1])], digest(*models))

        half = jnp.ones(3, jnp.bfloat16)
        small = jnp.full(3, 2.0**-10, jnp.bfloat16)
        odd = {
            "a prefix": ([half, {"x": half}], [small, None]),
            "None for all": ([half, half], None),
            "a number": ([half, half], [1.0, 2]),
            "a wider shape": ([half[:1], half], [small, small]),
            "no such key": ({"a": half}, {"b": half}),
            "one too many": ([half], [half, half]),
            "a wrong shape": ([half], [jnp.ones(2, jnp.bfloat16)]),
            "of no array": ([half, jax.nn.relu], [half, half]),
            "a subtree": ([half, (half,)], [half, half]),
            "NumPy": ([half, np.ones(3, jnp.bfloat16)], [small, np.ones(3, jnp.bfloat16)]),
            "a NumPy number": ([half], [np.float64(2)]),
        }
        if hasattr(jax.random, "key"):
            odd["a key"] = ([half, jax.random.key(0)], [half, None])
        for name, (model, updates) in odd.items():
            try:
                found = eqx.apply_updates(model, updates)
                leaves = jax.tree_util.tree_leaves(found)
                print(name, jax.tree_util.tree_structure(found),
                      [(type(x).__name__, str(x.dtype), x.shape) for x in leaves])
            except Exception as error:
                print(name, type(error).__name__, str(error)[:60])
        """
    found = [outcome(tmp_path, ORDERS["shim first"], script, **v) for v in ({}, STOCK)]
    assert found[0].splitlines() == found[1].splitlines()
    assert "float32" in found[0].splitlines()[0]


@pytest.mark.thorough
def test_a_sum_that_the_program_writes_itself_is_named(tmp_path: Path) -> None:
    script = """
        import json
        params = {"w": jnp.ones(8)}
        for tx in (optax.adam(1e-3, mu_dtype=jnp.bfloat16), optax.clip_by_global_norm(1.0)):
            tx.update(params, tx.init(params), params)
        assert shim.status().notes == [], "the params are float32"
        params = {"w": jnp.ones(8, jnp.bfloat16)}
        tx = optax.adam(1e-3)
        state = tx.init(params)
        assert shim.status().notes == []
        updates, state = tx.update(params, state, params)
        params = jax.tree_util.tree_map(jnp.add, params, updates)
        (note,) = shim.status().notes
        assert "`apply_updates` was never called" in note and note in str(shim.status())
        assert json.loads(shim.status().as_json())["notes"] == [note]
        with shim.disabled("stochastic_rounding"):
            assert shim.status().notes == []
        eqx.apply_updates(params, updates)
        print(shim.status().notes)
        """
    assert outcome(tmp_path, ORDERS["shim first"], script) == "[]\n"
