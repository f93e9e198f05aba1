"""Planning by expected ends: the capacity that will be free, and the asks that may start without delaying others.

`expected_ends.py` orders the ends of running tasks. `whatif.py` has the capacity of a supposed state, `timeline.py` the
capacity at all later times. `easy.py`, `shortest.py` and `conservative.py` are the modes of backfill; `reserve.py` has
the capacity that they set aside for one ask.
"""
