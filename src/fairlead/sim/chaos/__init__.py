"""Fault simulation: shipped parts of Fairlead run on virtual time while faults are injected.

`soak.py` is the command and `run.py` runs one scenario, which `faults.py` draws from a seed.

The world is virtual: the event loop (`loop.py`), the network, the server's machine, the nodes with their agents and
spawners, and the cloud. `tasks.py` records which tasks really run.

The judges share no code with the core: `checkers.py` (attempts, capacity, answers), `doorchecker.py` (starts),
`loanchecker.py` (loans and preemption) and `poolchecker.py` (pools), with the rules in `rules.py`. `feasible.py` says
which jobs could have run.
"""
