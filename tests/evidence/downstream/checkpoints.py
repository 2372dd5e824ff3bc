"""Save new states with orbax, flax and equinox, or restore and migrate them and print JSON.

``python -m evidence.downstream.checkpoints save FOLDER``, and the same with ``restore``.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import equinox as eqx
import flax.serialization
import jax
import orbax.checkpoint as ocp

from support.checkpoints import CASES, PARAMS, migrated

NAMES = ("inject", "nested", "MultiSteps", "scheduled", "prodigy")


class PyTree:
    """orbax, with the saved dtypes."""

    @staticmethod
    def save(path: Path, state: Any) -> None:
        ocp.PyTreeCheckpointer().save(path, state)

    @staticmethod
    def restore(path: Path, like: Any) -> Any:
        return ocp.PyTreeCheckpointer().restore(path, item=like)


class Standard:
    """orbax, with the dtypes of ``like``."""

    @staticmethod
    def save(path: Path, state: Any) -> None:
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(path, state)
        if hasattr(checkpointer, "wait_until_finished"):  # Newer ones write in the background.
            checkpointer.wait_until_finished()

    @staticmethod
    def restore(path: Path, like: Any) -> Any:
        return ocp.StandardCheckpointer().restore(path, jax.eval_shape(lambda: like))


class Flax:
    """flax, with the saved dtypes."""

    @staticmethod
    def save(path: Path, state: Any) -> None:
        path.write_bytes(flax.serialization.to_bytes(state))

    @staticmethod
    def restore(path: Path, like: Any) -> Any:
        return flax.serialization.from_bytes(like, path.read_bytes())


class Equinox:
    """equinox, which refuses other dtypes than those of ``like``."""

    @staticmethod
    def save(path: Path, state: Any) -> None:
        eqx.tree_serialise_leaves(path, state)

    @staticmethod
    def restore(path: Path, like: Any) -> Any:
        return eqx.tree_deserialise_leaves(path, like)


def main() -> None:
    warnings.simplefilter("ignore")  # Old libraries use deprecated parts of JAX.
    verb, folder = sys.argv[1], Path(sys.argv[2])
    params, found = PARAMS["bfloat16"], {}
    for library in (PyTree, Standard, Flax, Equinox):
        for name in NAMES:
            tx = CASES[name]()
            path = folder / f"{library.__name__}-{name}"
            if verb == "save":
                library.save(path, tx.init(params))
                continue
            like = tx.init(params)
            if library is Equinox:
                if not optax_dtypefix.is_applied("inject_hyperparams"):
                    continue  # Stock optax cannot make a state with the dtypes of patched optax.
                with optax_dtypefix.disabled():
                    like = CASES[name]().init(params)
            found[path.name] = migrated(tx, params, library.restore(path, like))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
