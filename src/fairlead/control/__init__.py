"""The control plane: decides which partitions this server leads, leads them, and follows those of other servers.

Start at `control.py`, the interface for requests, which connects the parts. `supervisor.py` is the reconcile loop. In
each pass it sends a heartbeat (`heartbeat.py`), reads the configuration (`configuration.py`), and has partitions led
(`leader.py`) or followed (`follower.py`). `streams.py` has a journal thread for each stream that is led, and retries;
`partition.py` is a partition that is led. `dependencies.py` lists what is given from outside.
"""
