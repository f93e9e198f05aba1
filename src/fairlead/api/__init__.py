"""The HTTP API: one port for people, programs and agents.

`control` runs the cluster beside it, `server` is the listening program, `routes` says what is served. A request goes
through `gate` (size, rate, who asks), then to a handler of its noun: `jobs`, `cluster`, `managers`, `access`, `health`.
"""
