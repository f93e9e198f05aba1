"""The spawner: a small process that owns the tasks of a node, so that they outlive the agent.

It is started with `python -I -S`, has one thread and does not use the network. The peak memory of a task includes
the size of the spawner that started it, and starting a task costs more the larger the spawner is. So modules in this
folder import only what they need: no typing, no socket, no msgspec.
"""
