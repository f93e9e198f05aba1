"""A node fails. Its tasks go back to the front of their lane and run elsewhere under a new attempt.

`tries` counts failures of the task itself, so a lost node uses none. A report of the old attempt changes nothing.

Prints:
    work[0] running on n0, attempt 1
    n0 fails
    work[0] running on n2, attempt 2, 0 tries used
    an old report: [Accepted(job='', note='stale: none of these attempts is live', items=())]
    job succeeded
"""

from fairlead.testing import World

w = World()
w.nodes(3, cpu=1)
job = w.submit(stages=[{"name": "work", "count": 2, "min": 1, "resources": {"cpu": 1}, "duration": 60}])
w.cycle()
w.advance(10)

node = w.placements(job)["work", 0]
task = w.task(job, "work", 0)
print(f"work[0] {task.state} on {node}, attempt {task.attempt}")
print(f"{node} fails")
w.fail_node(node)
w.advance(1)

again = w.task(job, "work", 0)
print(f"work[0] {again.state} on {again.node}, attempt {again.attempt}, {again.tries_used} tries used")

w.answers()
w.report(job, "work", 0, attempt=task.attempt, state="running", node=node)
w.cycle()
print(f"an old report: {w.answers()}")

w.advance(120)
print(f"job {w.job(job).state}")
