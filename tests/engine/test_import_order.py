"""Import the shim before, after and between jax and the real optax, each in a new process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import optax
import pytest

from support.scripts import run

if TYPE_CHECKING:
    from pathlib import Path

USER_MODULE = """
import functools

import optax
from optax import MultiSteps, fromage

partial = functools.partial(fromage, min_norm=1e-3)


def train(x):
    return optax.fromage(x)
"""


def test_shim_first(tmp_path: Path) -> None:
    script = """
        import importlib, pickle
        import optax_dtypefix as shim
        assert not {"jax", "optax"} & set(sys.modules)
        assert {s.state.value for s in shim.status()} == {"pending"}
        assert not {"jax", "optax"} & set(sys.modules), "status() imports jax or optax"

        import optax, user
        from optax import MultiSteps, fromage
        assert shim.is_applied("multi_steps") and shim.is_applied("fromage"), str(shim.status())
        assert not backends()
        update, wrapper = vars(MultiSteps)["update"], fromage
        assert not stock(update) and not stock(wrapper)
        assert user.fromage is user.partial.func is optax._src.alias.fromage is wrapper
        steps = MultiSteps(optax.sgd(0.1), 2)
        assert steps.update.__func__ is update

        with open("pickled", "wb") as file:
            pickle.dump([optax.fromage, MultiSteps, MultiSteps.update, user.partial], file)

        assert importlib.reload(optax).fromage is wrapper
        assert shim.is_applied("fromage")

        shim.revert()
        assert stock(optax.fromage) and stock(user.fromage)
        assert stock(vars(MultiSteps)["update"])
        assert shim.original(wrapper) is optax.fromage
        shim.apply()
        assert optax.fromage is user.fromage is fromage is wrapper
        assert vars(MultiSteps)["update"] is update
        shim.status()
        assert not backends()
        print(str(shim.status()).startswith("optax-dtypefix "))
        """
    (tmp_path / "user.py").write_text(USER_MODULE)
    assert run(tmp_path, script) == "True\n"
    without_the_shim = """
        import functools, pickle
        import optax
        with open("pickled", "rb") as file:
            fromage, multi_steps, update, partial = pickle.load(file)
        assert "optax_dtypefix" not in sys.modules
        assert stock(fromage) and fromage is optax.fromage
        assert multi_steps is optax.MultiSteps and update is optax.MultiSteps.update
        assert stock(update)
        assert type(partial) is functools.partial and partial.func is optax.fromage

        import optax_dtypefix as shim
        shim.apply()
        assert stock(optax.fromage) and stock(update)
        assert {s.reason for s in shim.status()} == {"switched off by OPTAX_DTYPEFIX=off"}
        assert {s.state.value for s in shim.status()} == {"disabled"}
        print(shim.is_applied("fromage"), backends())
        """
    assert run(tmp_path, without_the_shim, OPTAX_DTYPEFIX="off") == "False []\n"


def test_shim_last(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_MODULE)
    script = """
        import weakref
        import user, optax
        from optax import MultiSteps, fromage
        def names():
            modules = (optax, optax._src.alias, user)
            return [(name, id(value)) for m in modules for name, value in vars(m).items()]
        before = names()
        held = [weakref.ref(fromage), weakref.ref(vars(MultiSteps)["update"])]
        assert stock(held[0]()) and stock(held[1]())
        partial = user.partial

        import optax_dtypefix as shim
        for _ in range(2):
            assert shim.is_applied("multi_steps") and shim.is_applied("fromage")
            assert shim.status()["multi_steps"].state == "applied"
            assert fromage is user.fromage is optax.fromage is optax._src.alias.fromage
            assert not stock(fromage) and not stock(MultiSteps.update)
            assert shim.original(fromage) is held[0]()
            assert shim.original(MultiSteps.update) is held[1]()

            shim.revert()
            assert fromage is user.fromage is held[0]()
            assert user.partial is partial and stock(partial.func)
            assert vars(MultiSteps)["update"] is held[1]()
            assert names() == before
            assert {s.state.value for s in shim.status()} == {"disabled"}
            shim.apply()
        print(backends())
        """
    assert run(tmp_path, script) == "[]\n"


@pytest.mark.thorough
@pytest.mark.skipif(
    optax.__version__ == "0.1.7" and not hasattr(jax, "tree_map"),
    reason="stock mechanize of optax 0.1.7 does not run with this jax: there is nothing to probe",
)
def test_a_fork_is_probed(tmp_path: Path) -> None:
    """Every probe traces stock functions, computes nothing, and agrees with the table."""
    script = """
        import optax_dtypefix as shim
        from optax_dtypefix._engine import release as _release
        installed = _release.installed
        _release.installed = lambda p, tested: _release.Release(installed(p, tested).text + "+fork")
        import optax
        by_probe = {s.id: s.state.value for s in shim.status()}
        assert not backends(), "a probe computes"
        assert "is not a tested release; the probe found" in shim.status()["multi_steps"].reason
        assert not {"failed", "unsupported"} & set(by_probe.values()), str(shim.status())

        shim.revert()
        shim.apply("multi_steps")  # With this one applied the others are probed once more.
        shim.apply()
        assert {s.id: s.state.value for s in shim.status()} == by_probe
        print(by_probe["multi_steps"], backends())
        """
    assert run(tmp_path, script) == "applied []\n"
