"""A limit for a queue, and one for each user in it.

The queue may use ten CPUs, and each user four. Ann's first job uses her four CPUs. Her second job waits because of her
limit and keeps its place, and Bob's job passes it. When Ann's first job ends, her second job starts.

Prints:
    ann-1 running, ann-2 pending, bob-1 running
    1 task waits, first in queue root.lab; the limit of user ann in queue root.lab is 4 CPUs: 4 in use, 2 more needed
    root.lab uses 6 CPUs
    ann-1 succeeded, ann-2 running, bob-1 running
"""

from fairlead.testing import World

w = World(config={"queues": {"root": {"lab": {"limit": {"cpu": 10}, "users": {"*": {"limit": {"cpu": 4}}}}}}})
w.nodes(5, cpu=4)


def submit(name: str, user: str, count: int) -> str:
    return w.submit(name=name, user=user, queue="root.lab", stages=[{"count": count, "resources": {"cpu": 2}}])


def states() -> str:
    return ", ".join(f"{job} {w.job(job).state}" for job in jobs)


jobs = [submit("ann-1", "ann", 2), submit("ann-2", "ann", 1), submit("bob-1", "bob", 1)]
w.cycle()
print(states())
for waiting in w.explain("ann-2"):
    print(waiting)
print(f"root.lab uses {w.usage('root.lab')['cpu']} CPUs")

w.finish("ann-1")
w.cycle()
print(states())
