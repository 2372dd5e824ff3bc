"""State the dtype contract in terms of JAX; know nothing of patching.

``dtypes`` casts leaves, ``kinds`` and ``updates`` say how wide state and updates may be, ``x64``
leaves 64-bit mode, ``jaxpr`` walks traced programs. ``check`` and ``preserve`` are public.
"""
