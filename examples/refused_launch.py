"""A node that refuses launches is backed off for a while, and its tasks run elsewhere.

The first node cannot start processes. The task goes back to the tail of its lane, and the refused launch uses none of
its tries.

Prints:
    on n0: assigned, attempt 1
    pending: node n0 refused the launch
    1 task waits, first in queue root.default; 0 of 1 fit now: 1 node is paused after failed launches
    on n1: running, attempt 2, 0 tries used
"""

from fairlead.testing import World

w = World()
w.node("n0", cpu=1)
w.refuse_launches("n0")
job = w.submit(stages=[{"resources": {"cpu": 1}}])

w.cycle()
task = w.task(job, "main", 0)
print(f"on {task.node}: {task.state}, attempt {task.attempt}")

w.cycle()
task = w.task(job, "main", 0)
print(f"{task.state}: {task.reason}")
for waiting in w.explain(job):
    print(waiting)

w.node("n1", cpu=1)
w.advance(0.5)
task = w.task(job, "main", 0)
print(f"on {task.node}: {task.state}, attempt {task.attempt}, {task.tries_used} tries used")
