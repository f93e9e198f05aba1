"""Previews: copies of a partition run forward on a virtual clock, with drawn run times and arrivals.

`runtimes.py` draws run times, `future.py` runs one copy forward, `eta.py` combines several.
"""
