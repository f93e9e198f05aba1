"""Fault simulation: the shipped parts of Fairlead run on virtual time while faults are injected.

`soak.py` is the command, and `run.py` runs one scenario, which `faults.py` draws from a seed.

The surroundings are virtual: `loop.py` is the event loop with its processes, `network.py` the connections, `server.py`
the server's process and disk, `servers.py` several servers that share a journal, `agents.py` the nodes, `spawner.py`
their spawners and `cloud.py` the machines of pools. `tasks.py` has the types of running tasks.

The checkers do not use the core's rules: `checkers.py` (attempts, capacity, answers, gangs, holds), `start_checker.py`
(starts), `rebalance_checker.py` (loans), `pool_checker.py` (pools) and `leader_checker.py` (leases and epochs).
`rules.py` has their rules of starting, and `feasible.py` decides which jobs could run.
"""
