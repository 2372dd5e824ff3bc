"""``check``: say if the user's own optimizer is affected, and which patches fix it.

``target`` finds the optimizer, ``trees`` reads the params, ``process`` measures in a process of its
own, ``runs`` starts such processes, ``needs`` finds the patches by leaving some out, ``results``
compares and prints.
"""
