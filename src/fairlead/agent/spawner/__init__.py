"""The spawner: a small process that owns the tasks of a node, so that they outlive the agent.

It is started with `python -S -E`, has one thread and knows nothing of the network. What a started task shows as its
peak memory begins at the spawner's own size, and starting one costs more the larger it is. So nothing in this folder
imports more than it needs: no typing, no socket, no msgspec.
"""
