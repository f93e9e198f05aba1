"""The control plane: decides which partitions this server leads, leads them, and follows those of other servers.

Start at `control.py`, the interface for requests. `supervisor.py` has the parts and the reconcile loop. In each pass it
sends a heartbeat (`heartbeat.py`), reads the configuration (`configuration.py`), and has partitions led (`leader.py`)
or followed (`follower.py`). `streams.py` has a journal thread for each led stream, and retries failed ones.
`partition.py` is a led partition.
"""
