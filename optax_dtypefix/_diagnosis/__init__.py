"""Show faults: ``check``, ``doctor``, ``scan`` and the reproducers.

A program that trains on a tested release imports nothing of it.
"""
