"""On eight devices the patched step keeps shardings and moves no more data than the stock step."""

from __future__ import annotations

import collections
from typing import Any

import jax
import pytest
from packaging.version import Version

from support.processes import QUICKLY, json_of, stock_and_patched
from support.thorough import thorough_but

pytestmark = pytest.mark.skipif(
    Version(jax.__version__) < Version("0.6"), reason="jit of older jax replicates what init makes"
)


@pytest.fixture(
    scope="module", params=thorough_but(["adamw cocob"], ["adamw cocob", ""]), ids=["some", "all"]
)
def printed(request: Any) -> Any:
    """Run ``sharded.py`` on stock and on patched optax."""
    flags = f"--xla_force_host_platform_device_count=8 {QUICKLY.get('XLA_FLAGS', '')}"
    return stock_and_patched("multihost.sharded", *request.param.split(), XLA_FLAGS=flags)


@pytest.fixture
def both(printed: Any) -> Any:
    """Return the steps."""
    return tuple(found["steps"] for found in printed)


def test_a_state_from_shapes_is_sharded_as_the_params(printed: Any) -> None:
    """As ``init`` makes it for a checkpoint library that restores into the state."""
    for found in printed:
        assert "cocob bfloat16" in found["from shapes"]
        assert {name: moved for name, moved in found["from shapes"].items() if moved} == {}


def test_params_and_state_keep_their_shardings(both: Any) -> None:
    stock, patched = both
    jitted = {name for name, found in patched.items() if "params stay" in found}
    assert [name for name in jitted if not patched[name]["params stay"]] == []
    moved = {name for name in jitted if not patched[name]["state stays"]}
    assert moved <= {name for name in jitted if not stock[name]["state stays"]}


def more_in(patched: Any, stock: Any) -> dict[str, dict[str, int]]:
    """Count the instructions by which a patched program moves more than the stock one."""
    more = {
        name: collections.Counter(found["moved"]) - collections.Counter(stock[name]["moved"])
        for name, found in patched.items()
    }
    return {name: dict(count) for name, count in more.items() if count}


@pytest.mark.rule("C5")
def test_no_collective_is_added(both: Any) -> None:
    stock, patched = both
    assert all("all-reduce" in stock[name]["moved"] for name in stock if "shard_map" in name)
    more = more_in(patched, stock)
    # In bfloat16 wrong values are fixed, which may need a copy on the same device, and moments
    # without a counter one number of all data.
    fixes = {"copy", "all-reduce"}
    assert {name: m for name, m in more.items() if "float32" in name or not set(m) <= fixes} == {}


def test_float32_values_in_shard_map_and_pmap_equal_stock(both: Any) -> None:
    stock, patched = both
    mapped = [name for name in stock if name.endswith(("float32 in_shard_map", "float32 in_pmap"))]
    assert mapped
    for name in mapped:
        assert patched[name]["values"] == stock[name]["values"] != [0.5] * 8, name


@pytest.fixture(scope="module")
def rounded() -> Any:
    """Run ``rounded.py`` on one device and on eight, each in a process of its own."""
    flag = "--xla_force_host_platform_device_count="
    return [json_of("multihost.rounded", XLA_FLAGS=flag + count) for count in "18"]


@pytest.mark.thorough
def test_one_device_and_eight_round_to_the_same_bits(rounded: Any) -> None:
    one, eight = (each["runs"] for each in rounded)
    for name, found in one.items():
        assert {**found, "collectives": []} == {**eight[name], "collectives": []}, name


@pytest.mark.thorough
def test_bits_need_no_more_than_a_number_from_other_devices(rounded: Any) -> None:
    one, eight = (each["runs"] for each in rounded)
    for name in one:
        assert one[name]["collectives"] == []
        assert eight[name]["collectives"] == ["all-reduce"], name


@pytest.mark.thorough
def test_replicas_agree_and_shards_and_devices_have_their_own_bits(rounded: Any) -> None:
    for found in (each["mapped"] for each in rounded):
        assert len(found["replicas"]) == 1
        assert found["shards have bits of their own"]
        assert found["leaves stay on their devices"]


@pytest.mark.thorough
def test_moments_of_replicas_agree_beside_shards(rounded: Any) -> None:
    """These states do not count: data of the shards would give each replica other bits."""
    _, eight = rounded
    for name, found in eight["beside shards"].items():
        assert found == dict.fromkeys(found, 1), name


@pytest.mark.skipif(Version(jax.__version__) < Version("0.7"), reason="set_mesh came with jax 0.7")
def test_explicit_axes_change_no_bit_and_move_nothing() -> None:
    """``jax.make_mesh`` makes them. They refuse to cut an array where it is sharded."""
    found = json_of("multihost.explicit", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    for name, of in found.items():
        assert of["Explicit"] == of["Auto"], name
        assert all(not each.get("whole arrays") for each in of["Explicit"].values()), name
