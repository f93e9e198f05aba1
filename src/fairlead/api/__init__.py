"""The HTTP API: one port for people, programs and agents.

`control` runs the cluster, `server` is the listening program, and `routes` lists the handlers. A request passes
`middleware` (size, rate, caller) and goes to the handler of its noun: `jobs`, `cluster`, `managers` and so on.
"""
