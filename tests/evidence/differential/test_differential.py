"""A patched update is never worse than the stock one, in kind, in width and beside float64.

Here a few examples run, in ``nox -s fuzz`` thousands. OPTAX_DIFFERENTIAL=adam,lion selects these.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import (
    event,
    given,
    note,
    strategies as st,
)

from evidence.differential import rules, specs

_ONLY = os.environ.get("OPTAX_DIFFERENTIAL", "").split(",")


def _families() -> list[Any]:
    found = specs.families()
    if _ONLY != [""]:
        found = {name: tuple(m for m in of if m in _ONLY) for name, of in found.items()}
    return [pytest.param(of, id=name) for name, of in found.items() if of]


@pytest.mark.parametrize("names", _families())
@given(data=st.data())
def test_never_worse_than_stock(workers: Any, names: Any, data: Any) -> None:
    spec = specs.drawn(lambda of: data.draw(st.sampled_from(of)), names)
    how, broken = rules.broken(spec, workers)
    event(how.partition(":")[0])
    note(f"cd tests; python -m evidence.differential.sweep '{json.dumps(spec)}'")
    assert not broken, f"{broken[0]}: {json.dumps(spec)}"
