"""Mutants that survive because they change nothing that a test could see, and why."""

from __future__ import annotations

EXPLAINED: dict[tuple[str, str], str] = {
    (
        "patches/learning_rate.py",
        "jnp.finfo(rate.dtype).bits > jnp.finfo(widest).bits  ->  "
        "jnp.finfo(rate.dtype).bits >= jnp.finfo(widest).bits",
    ): "A real, strong rate with the bits of float32 or float64 has that dtype: cast returns it.",
    (
        "patches/learning_rate.py",
        "if callable(rate):  ->  if False:",
    ): "In 0.2.3 no function of the patch takes a schedule. A test of 0.2.8 fails.",
    (
        "patches/multi_steps.py",
        "if jnp.issubdtype(param, jnp.complexfloating) or requested == jnp.float32:  ->  if True:",
    ): "Before 0.2.8 there is no accumulator_dtype to ask for. A test of 0.2.8 fails.",
    (
        "patches/door/arguments.py",
        "value.dtype.itemsize > dtype.itemsize  ->  value.dtype.itemsize >= dtype.itemsize",
    ): "A float of that size has that dtype, and stock counts in int32.",
    (
        "patches/sums.py",
        "beside and len(strong) > 1  ->  beside or len(strong) > 1",
    ): "Where the dtype is known without a trace of stock, the trace finds the same one, later.",
    (
        "patches/reduce_on_plateau.py",
        "new_state.lr if old else new_state.scale  ->  new_state.lr if False else new_state.scale",
    ): "Only releases up to 0.2.1 have this field. A test of 0.2.0 fails.",
    (
        "patches/reduce_on_plateau.py",
        "'loss' if old else 'value'  ->  'loss' if False else 'value'",
    ): "Only releases up to 0.2.1 have this argument. A test of 0.2.0 fails.",
    (
        "patches/schedule_free.py",
        "if in_old_release:  ->  if True:",
    ): "0.2.3 is the old release. A test of 0.2.8 fails.",
    (
        "optax_dtypefix/_engine/lock.py",
        "if hasattr(os, 'register_at_fork'):  ->  if True:",
    ): "Only Windows lacks it.",
    (
        "patches/sums.py",
        "len(strong) > 1  ->  len(strong) >= 1",
    ): "Where the dtype is known without a trace of stock, the trace finds the same one, later.",
    (
        "patches/multi_steps.py",
        "self.grads if self.other is None else grads  ->  self.grads if True else grads",
    ): "In 0.2.8 there is no other branch. A test of 0.2.3 fails.",
    (
        "optax_dtypefix/_engine/locate.py",
        "find(module, path) if path else sys.modules.get(module)  ->  "
        "find(module, path) if False else sys.modules.get(module)",
    ): "The sweep over the names of the package, which follows, binds a method too.",
}
"""By file and change: why no test can fail."""
