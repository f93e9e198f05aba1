"""Looks into the future: a copy of a partition runs forward on a virtual clock, with drawn run times and arrivals.

`runtimes.py` draws run times, `future.py` runs one copy forward, `eta.py` sums up several of them.
"""
