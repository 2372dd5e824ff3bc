"""Make weakly typed scalars, which take the dtype of the array that they meet."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ..._tally import count


def weak(value: Any) -> Any:
    """Give an array of float32 or float64 a weak type. The value stays."""
    count(f"{value.dtype} to weak {value.dtype}")
    parameters = {**_parameters(), "new_dtype": value.dtype, "weak_type": True}
    return jax.lax.convert_element_type_p.bind(value, **parameters)


@functools.cache
def _parameters() -> dict[str, Any]:
    """List the parameters that the installed jax gives a cast: later ones have ``sharding``."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda x: x.astype(jnp.bfloat16))(scalar)
    (cast,) = jaxpr.eqns
    return dict(cast.params)
