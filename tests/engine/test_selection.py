"""The table decides on tested releases, probes decide on all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import jax
import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, State
from optax_dtypefix._diagnosis.probes import Reproducer
from optax_dtypefix._engine.patch import Fault
from optax_dtypefix._engine.release import Release, installed
from optax_dtypefix._settings import Settings
from optax_dtypefix.patches.releases import TESTED
from support.fakepackage import (
    NAME,
    FakePackage,
    engine_of,
    fault,
    negate,
    on,
    patch,
    start,
    traced,
)

if TYPE_CHECKING:
    pass

UNTESTED = [
    "0.2.9.dev1",
    "0.2.5+local",
    "0.2.5.post1",
    "0.3",
    "99.0",
    "not a version",
    "",
    "0.-1",
    "0_2",
    "0..2",
]


def must_not_run() -> NoReturn:
    raise AssertionError("probed")


@pytest.mark.parametrize("version", ["0.1.2", "0.2.3", "0.2.5"])
def test_the_table_decides_on_a_tested_release(package: FakePackage, version: str) -> None:
    package.release(version)
    engine = engine_of(
        patch("a", on("scale"), faults=[fault(must_not_run, "<0.2"), fault(releases="==9")]),
        patch("b", on("shift"), faults=[fault(must_not_run, ">=0.2.3")]),
    )
    start(engine)
    package.load()
    old = version == "0.1.2"
    states = [State.APPLIED, State.NOT_NEEDED] if old else [State.NOT_NEEDED, State.APPLIED]
    assert [p.state for p in engine.status()] == states
    assert f"{NAME} {version} has: fault" in [p.reason for p in engine.status()]
    assert f"{NAME} {version} has none of the faults of this patch" in [
        p.reason for p in engine.status()
    ]


@pytest.mark.parametrize("version", UNTESTED)
def test_the_probe_decides_on_an_untested_release(package: FakePackage, version: str) -> None:
    package.release(version)

    def raises() -> NoReturn:
        raise TypeError("cond branches differ")

    engine = engine_of(
        patch("shown", on("scale"), faults=[fault(lambda: None, "<0.1"), fault(releases="<0.1")]),
        patch("raised", on("shift"), faults=[fault(raises, "<0.1")]),
        patch("sound", on("Box.get"), faults=[fault(lambda: None)]),
    )
    start(engine)
    pkg = package.load()
    assert [p.state for p in engine.status()] == [State.APPLIED] * 2 + [State.NOT_NEEDED]
    assert all("is not a tested release" in p.reason for p in engine.status())
    assert (pkg.scale(5), pkg.shift(1), pkg.Box(1).get()) == (-10, -2, 1)


@pytest.mark.parametrize(("version", "first"), [("99.0", "new"), ("0.2.3+local", "old")])
def test_faults_that_such_a_release_had_are_probed_first(
    package: FakePackage, version: str, first: str
) -> None:
    """To look for others takes time, and one fault is enough."""
    package.release(version)
    seen: list[str] = []

    def probe(name: str) -> str:
        seen.append(name)
        return "seen"

    faults = [fault(lambda: probe("old"), "<0.2.4"), fault(lambda: probe("new"), ">=0.2.4")]
    start(engine_of(patch("a", on("scale"), faults=faults)))
    package.load()
    assert seen == [first]


def test_the_modes_of_the_user_do_not_reach_probes(package: FakePackage) -> None:
    package.release("99.0")
    seen: list[bool] = []

    def reproduce(pkg: Any) -> str | None:
        seen.append(jax.config.jax_disable_jit)
        return None if pkg.scale(5) < 0 else "seen"

    start(engine_of(patch("a", on("scale"), faults=[traced(reproduce)])))
    with jax.disable_jit():
        assert package.load().scale(5) == -10
    assert seen == [False, False]  # On stock, and on the patched function.


def test_a_fault_that_computes_needs_a_probe(package: FakePackage) -> None:
    package.release("99.0")
    computes = Fault("computes", "", "", lambda: Reproducer("", must_not_run))
    probed = Fault("probed", "", "", lambda: Reproducer("", must_not_run, lambda _: "seen"))
    engine = engine_of(
        patch("a", on("scale"), faults=[computes]),
        patch("b", on("shift"), faults=[computes, probed]),
    )
    start(engine)
    package.load()
    assert [p.state for p in engine.status()] == [State.NOT_NEEDED, State.APPLIED]
    assert engine.status()["b"].reason.endswith("the probe found: probed")


def test_a_patch_that_does_not_fix_the_probed_fault_is_reverted(package: FakePackage) -> None:
    """A patch may not fit an untested release: the engine warns and leaves stock in place."""
    package.release("99.0")

    def vanished(stock: object, *args: object) -> NoReturn:
        del stock, args
        raise AttributeError("this optax has no tree_utils")

    def positive(function: str) -> Fault:
        def is_positive(pkg: Any) -> str | None:
            found = getattr(pkg, function)(5)
            return None if found < 0 else f"{function} gives {found}"

        return traced(is_positive)

    engine = engine_of(
        patch("fixes", on("scale", negate), faults=[positive("scale")]),
        patch("does_not", on("shift", lambda stock, x: stock(x)), faults=[positive("shift")]),
        patch("raises", on("twice", vanished), faults=[positive("twice")]),
    )
    pkg = package.load()
    with pytest.warns(OptaxDtypeFixWarning, match="does_not.*raises"):
        start(engine)
    states = [State.APPLIED, State.UNSUPPORTED, State.UNSUPPORTED]
    assert [p.state for p in engine.status()] == states
    assert engine.status()["does_not"].reason.endswith("does not fix it: shift gives 6")
    assert "this optax has no tree_utils" in engine.status()["raises"].reason
    assert [p.targets for p in engine.status()][1:] == [(), ()]
    assert type(pkg.shift).__name__ == type(pkg.twice).__name__ == "function"
    assert (pkg.scale(5), pkg.shift(5), pkg.twice(5)) == (-10, 6, 20)


def test_a_patch_that_is_applied_inside_disabled_stays(package: FakePackage) -> None:
    """It changes nothing inside the block, so it cannot be verified there."""
    package.release("99.0")
    is_positive = traced(lambda pkg: "positive" if pkg.scale(5) > 0 else None)
    engine = engine_of(patch("a", on("scale", negate), faults=[is_positive]))
    pkg = package.load()
    with engine.disabled("a"):
        engine.apply("a")
        assert pkg.scale(5) == 10
    assert engine.status()["a"].state is State.APPLIED
    assert pkg.scale(5) == -10


def test_a_probe_sees_stock_although_other_patches_are_applied(package: FakePackage) -> None:
    package.release("99.0")
    seen = []

    def probe() -> str:
        pkg = package.load()
        seen.append((pkg.scale(5), pkg.twice(1), pkg.Box(1).get()))
        return "seen"

    engine = engine_of(
        patch("a", on("scale", negate), on("Box.get", negate), faults=[fault(probe)]),
        patch("b", on("scale", negate), faults=[fault(probe)]),
    )
    pkg = package.load()
    engine.apply("a")
    assert pkg.scale(5) == -10
    engine.apply("b")
    assert pkg.scale(5) == 10  # Negated twice.
    assert seen == [(10, 4, 1)] * 2


@pytest.mark.parametrize("error", [AttributeError("no adam"), ImportError("no adam")])
def test_a_probe_that_cannot_run(package: FakePackage, error: Exception) -> None:
    package.release("99.0")

    def probe() -> NoReturn:
        raise error

    engine = engine_of(patch("a", on("scale"), faults=[fault(probe)]))
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning, match="the probe could not run: .*Error: no adam"):
        pkg = package.load()
    assert engine.status()["a"].state is State.UNSUPPORTED
    assert pkg.scale(5) == 10


def test_a_wrong_call_raises_the_error_of_stock(package: FakePackage) -> None:
    package.release("99.0")
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    pkg = package.load()
    with pytest.raises(TypeError, match=r"scale\(\) missing 1 required positional argument: 'x'"):
        pkg.scale()


@pytest.mark.parametrize(
    ("known", "other"), [(("x", "factor", "gone"), "gone"), (("x",), "factor")]
)
def test_a_function_with_other_parameters_is_not_patched_on_an_untested_release(
    package: FakePackage, known: tuple[str, ...], other: str
) -> None:
    needs = patch("a", on("scale", known_parameters=known))
    fits = patch("b", on("scale", known_parameters=("x", "factor")))
    engine = engine_of(needs, fits)
    package.release("99.0")
    pkg = package.load()
    with pytest.warns(OptaxDtypeFixWarning, match=f"scale has other parameters: {other}. The"):
        engine.apply()
    assert [row.state for row in engine.status()] == [State.UNSUPPORTED, State.APPLIED]
    assert pkg.scale(5, 3) == -15
    with pytest.raises(OptaxDtypeFixError, match=f"other parameters: {other}"):
        engine_of(needs, settings=Settings(strict=True)).apply()
    engine.revert()
    pkg.__version__ = "0.2.5"
    engine.apply("a")  # On a tested release the replacement was tested with every parameter.
    assert pkg.scale(5, 3) == -15


def test_each_variant_serves_its_releases(package: FakePackage) -> None:
    package.release("0.2.3")
    old = on("scale", releases="<0.2.5")
    new = on("not_there_yet", releases=">=0.2.5")
    engine = engine_of(patch("a", old, new), patch("b", new, faults=[fault(releases=">=0.2.5")]))
    start(engine)
    assert package.load().scale(5) == -10
    assert engine.status()["b"].state is State.MISSING
    assert engine.status()["b"].reason == "this release has none of the functions of this patch"


@pytest.mark.parametrize(
    ("version", "factor"),
    [
        ("0.2.5.dev3", 200),
        ("0.2.5rc1", 200),
        ("0.2.5.dev3+g1234", 200),
        ("0.2.5+local", 200),
        ("0.2.4.dev1", 100),
        ("0+unknown", 200),
        ("0.0.0", 200),
    ],
)
def test_what_comes_before_a_release_may_need_its_variant(
    package: FakePackage, version: str, factor: int
) -> None:
    """PEP 440 sorts it before the release, so the variant of the release before is tried first.

    The version of a fork may say nothing.
    """
    package.release(version)
    package.sources[f"{NAME}.core"] += f"\n        FACTOR = {factor}\n"

    def times(factor: int) -> Any:
        return lambda stock, x: stock(x) * factor

    def reproduce(pkg: Any) -> str | None:
        scaled = pkg.scale(1)
        return None if scaled == pkg.core.FACTOR * 2 else f"{scaled}"

    made = patch(
        "a",
        on("scale", times(100), releases="<0.2.5"),
        on("scale", times(200), releases=">=0.2.5"),
        faults=[traced(reproduce)],
    )
    engine = engine_of(made, patch("moved", on("twice", releases=">=0.2.5")))
    start(engine)
    pkg = package.load()
    assert pkg.scale(1) == 2 * factor
    row = engine.status()["a"]
    assert (row.state, row.targets) == (State.APPLIED, (f"{NAME}.core:scale",))
    assert f"{version} is not a tested release" in row.reason


def test_the_reason_is_that_of_the_own_variant_if_none_fits(package: FakePackage) -> None:
    package.release("0.2.5.dev3")
    tried: list[str] = []

    def failing(name: str) -> Any:
        return lambda stock, x: tried.append(name) or stock(x)

    def reproduce(pkg: Any) -> str:
        return f"{pkg.scale(1)}, {len(tried)}"

    made = patch(
        "a",
        on("scale", failing("old"), releases="<0.2.5"),
        on("scale", failing("new"), releases=">=0.2.5"),
        faults=[traced(reproduce)],
    )
    engine = engine_of(made)
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning, match="the patch does not fix it: 2, 1. The fun"):
        pkg = package.load()
    assert tried == ["old", "new"]
    assert engine.status()["a"].state is State.UNSUPPORTED
    assert pkg.scale(1) == 2
    assert tried == ["old", "new"]


def test_all_functions_that_a_release_lacks_are_named(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", modules=(f"{NAME}.old",)), on("gone"), on("gone")))
    package.load()
    with pytest.warns(OptaxDtypeFixWarning, match="has no scale, gone"):
        engine.apply()
    assert engine.status()["a"].reason == "this release has no scale, gone"


def test_the_first_module_with_the_function_is_patched(package: FakePackage) -> None:
    modules = (f"{NAME}.new_home", f"{NAME}.extra.late", f"{NAME}.core")
    engine = engine_of(patch("a", on("scale", modules=modules)))
    start(engine)
    assert package.load().scale(5) == -10
    assert engine.status()["a"].targets == (f"{NAME}.core:scale",)


def test_an_opt_in_patch_applies_only_when_named(package: FakePackage) -> None:
    opt_in = patch("a", on("scale"), opt_in=True)
    pkg = package.load()
    engine = engine_of(opt_in)
    engine.apply()
    assert pkg.scale(5) == 10
    assert engine.status()["a"].state is State.DISABLED
    assert "OPTAX_DTYPEFIX_ENABLE" in engine.status()["a"].reason
    engine.apply("a")
    assert pkg.scale(5) == -10
    engine.revert()
    for settings in (Settings(enable=frozenset({"a"})), Settings(only=frozenset({"a"}))):
        engine = engine_of(opt_in, settings=settings)
        engine.apply()
        assert pkg.scale(5) == -10
        engine.revert()


def test_the_environment_overrides_apply(package: FakePackage) -> None:
    pkg = package.load()
    patches = patch("a", on("scale")), patch("b", on("shift"))
    off = engine_of(*patches, settings=Settings(disable=frozenset({"a"})))
    off.apply()
    assert (pkg.scale(5), pkg.shift(1)) == (10, -2)
    assert off.status()["a"].reason == "switched off by OPTAX_DTYPEFIX_DISABLE"
    with pytest.warns(OptaxDtypeFixWarning, match="Patch 'a' was not applied: switched off by"):
        off.apply("a")
    assert pkg.scale(5) == 10
    off.revert()
    only = engine_of(*patches, settings=Settings(only=frozenset({"a"})))
    only.apply()
    assert (pkg.scale(5), pkg.shift(1)) == (-10, 2)
    assert only.status()["b"].reason == "not in OPTAX_DTYPEFIX_ONLY"


def test_the_version_is_that_of_the_module_in_use(package: FakePackage) -> None:
    pkg = package.load()
    assert installed(pkg, TESTED) == Release("0.2.5", tested=True)
    pkg.__version__ = ("0", "2")
    assert installed(pkg, TESTED) == Release("")
    assert str(Release("")) == "unknown"
    assert installed("a distribution that is not there", TESTED).text == ""
    assert installed("pytest", TESTED).text == pytest.__version__


@pytest.mark.parametrize("version", UNTESTED)
def test_an_unreadable_or_later_version_counts_as_new(version: str) -> None:
    assert Release(version).within(">=0.2.5")
    assert not Release(version).within("<0.2.5")


def test_allow_missing_targets_counts_on_an_untested_release(
    package: FakePackage,
) -> None:
    package.release("99.0")
    engine = engine_of(
        patch("whole", on("scale"), on("gone")),
        patch("parts", on("shift"), on("gone"), allow_missing_targets=True),
        patch("nothing", on("gone"), allow_missing_targets=True),
    )
    start(engine)
    pkg = package.load()
    states = [State.MISSING, State.APPLIED, State.MISSING]
    assert [p.state for p in engine.status()] == states
    assert engine.status()["parts"].targets == (f"{NAME}.core:shift",)
    assert pkg.scale(5) == 10


def test_allow_missing_targets_does_not_count_on_a_tested_release(package: FakePackage) -> None:
    package.release("0.2.5")
    engine = engine_of(patch("parts", on("shift"), on("gone"), allow_missing_targets=True))
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning, match="has no gone"):
        package.load()
    assert engine.status()["parts"].state is State.MISSING
