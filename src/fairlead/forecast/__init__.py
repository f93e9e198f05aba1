"""Forecasts: copies of a partition run forward on a virtual clock, with drawn run times and arrivals.

`runtimes.py` draws run times, `future.py` runs one copy forward, `eta.py` combines several into a start time, and
`comparison.py` compares them with and without a change. All of it runs in a second process, `process.py`.
"""
