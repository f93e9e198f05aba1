"""The spawner: a small process that owns the tasks of a node, so that they outlive the agent.

It is started with `python -I -S`, has one thread and does not use the network. A task's peak memory includes the size
of the spawner that started it, and a larger spawner starts tasks more slowly. So modules in this folder import only
what they need: no typing, no socket, no msgspec.
"""
