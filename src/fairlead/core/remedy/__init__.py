"""Remedies: what would be enough for a waiting ask to start in the next cycle.

`steps.py` has the typed steps, `trial.py` tries them in the core on a copy of the state, `search.py` finds the smallest
set that is enough.
"""
