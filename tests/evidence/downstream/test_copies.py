"""Names that libraries copied from optax before the shim was imported are rebound."""

from __future__ import annotations

from support.processes import run

SCRIPT = """
import sys
import equinox, flax.nnx, flax.training.train_state, haiku, numpyro.optim, optimistix
import optax, optax.contrib
import orbax.checkpoint
import optax_dtypefix
from optax_dtypefix._engine.verbs import stock_of

stock = {
    id(stock_of(vars(module).get(name.rpartition(".")[2])))
    for patch in optax_dtypefix.status()
    for target in patch.targets
    for module_name, _, name in [target.partition(":")]
    for module in [sys.modules[module_name]]
    if "." not in name
}
left = [
    f"{name}.{attribute}"
    for name, module in list(sys.modules.items())
    if not name.startswith("optax_dtypefix")
    for attribute, value in list(getattr(module, "__dict__", {}).items())
    if id(value) in stock
]
print(len(stock) > 20, left)
"""


def test_no_module_keeps_a_stock_function() -> None:
    done = run("-W", "ignore", "-c", SCRIPT)
    assert done.stdout == "True []\n", done.stderr
