"""Shadowing: the past of another cluster, run again under Fairlead's policies; start at `shadow/shadow_run.py`."""
