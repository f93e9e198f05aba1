"""Planning ahead by expected ends: what is free at a later time, and which asks may start without delaying others.

`expected_ends.py` orders the ends of running tasks, `whatif.py` is the capacity of a supposed state, `timeline.py` that
of every later time. `easy.py`, `shortest.py` and `conservative.py` are the modes of backfill; `reserve.py` is the
capacity that they set aside for one ask.
"""
