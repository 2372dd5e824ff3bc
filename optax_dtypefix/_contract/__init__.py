"""State the dtype contract in terms of JAX; know no patch.

``dtypes`` casts leaves, ``kinds`` and ``updates`` say how wide state and updates may be, ``x64``
leaves 64-bit mode, ``jaxpr`` walks traced programs. ``check``, ``values``, ``preserve`` and
``master_weights`` are public.
"""
