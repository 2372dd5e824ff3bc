"""``check``: say if the user's own optimizer is affected, and which patches fix it.

``optimizer`` finds the optimizer, ``params`` reads the params, ``worker`` checks in a process of
its own, ``results`` compares stock and patched optax and prints.
"""
