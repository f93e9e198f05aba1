"""A gang starts whole or not at all.

A job needs four workers of two CPUs each at the same time. Three nodes have capacity for three of them, so nothing
starts until a fourth node joins.

Prints:
    pending: 0 of 4 workers placed
    can never run: all nodes and pools together take 3 of 4 tasks (missing: capacity for 1 more with 2 CPUs)
    running: 4 of 4 workers placed
"""

from fairlead.testing import World

w = World()
w.nodes(3, prefix="n", cpu=2)
job = w.submit(name="train", stages=[{"name": "worker", "count": 4, "resources": {"cpu": 2}}])

w.cycle()
print(f"{w.job(job).state}: {len(w.placements(job))} of 4 workers placed")
for waiting in w.explain(job):
    print(waiting.reason)

w.node("n3", cpu=2)
w.cycle()
print(f"{w.job(job).state}: {len(w.placements(job))} of 4 workers placed")
