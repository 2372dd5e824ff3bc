"""``check``: is the user's own optimizer affected, do the patches fix it, and which of them?

``target`` finds the optimizer, ``trees`` reads the params, ``process`` measures in a process of its
own, ``needs`` finds the patches by leaving each out, ``results`` compares and prints.
"""
