"""Fairlead as a scheduler for Kubernetes: it reads nodes and pods from an API server and places the pods.

Start at `runner.py`, which connects the parts: `reflector.py` follows objects of the cluster, `adapter.py` turns them
into updates for a partition, and decisions into actions; `partition_link.py` reaches the partition, and `actions.py`
makes the calls about pods. `groups.py`, `pods.py`, `nodes.py`, `quantities.py`, `names.py` and `rules.py` translate
manifests, without I/O.
"""
