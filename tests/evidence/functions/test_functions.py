"""The table of public functions is right on this release: all functions, measured again."""

from __future__ import annotations

import optax

from evidence.functions.record import updated
from optax_dtypefix._diagnosis.scan.functions import measured as recorded
from support.processes import json_of


def test_the_table_is_what_is_measured_here() -> None:
    measured = json_of("evidence.functions.measure")
    assert updated(recorded(), optax.__version__, measured) == recorded()
