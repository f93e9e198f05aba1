"""Properties of all histories: Hypothesis draws the events, and independent checkers (watching.py) judge the result.

1. no over-commit ever, and 2. gangs whole or not at all: seen from the agents' side
3. no request lost or doubled under retries
4. work-conserving: after the cycles of one instant no head that is allowed fits
5. lanes without shared nodes never influence each other
6. the same commands in the same order give the same bytes
7. a restart between any two steps changes nothing; while not ready nothing is placed or expires

test_machine.py checks that undo is exact, that replay equals live, and that the index finds the nodes that fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from fairlead.core.commands import Accepted, Rejected, Submit
from fairlead.core.documents import parse_job
from fairlead.core.effects import ForNode
from fairlead.core.policy.order import ORDERS
from fairlead.core.ranges import count, indices
from fairlead.sim.fleet import Fleet
from fairlead.testing import World
from tests.core.watching import NODES, UNLIMITED, Play, Step, Wanted, Watch, overlooked

Steps = list[Step]

nodes = st.sampled_from([*NODES])
numbers = st.integers(0, 50)
documents = st.fixed_dictionaries(
    {"count": st.integers(1, 4), "cpu": st.integers(1, 3), "queue": st.sampled_from(["root.a", "root.b"])},
    optional={
        "min": st.just(1),
        "gpu": st.sampled_from(["0.25", "0.5", 1, 2]),
        "on_loss": st.sampled_from(["replace", "restart", "fail"]),
        "duration": st.sampled_from([0, 2, 7]),
        "user": st.sampled_from(["ann", "bob"]),
        "priority": st.integers(0, 2),
        "tries": st.integers(1, 2),
        "selectors": st.just({"zone": "z"}),
    },
)
gangs = st.fixed_dictionaries(
    {"count": st.integers(2, 5), "cpu": st.integers(1, 2), "queue": st.just("root.a"), "user": st.just("bob")},
    optional={"min": st.integers(1, 2), "on_loss": st.sampled_from(["replace", "restart", "fail"])},
)
TROUBLE = ["refuse_launches", "silence", "fail_node", "return_node", "hold_acks", "release_acks"]
trouble = st.tuples(st.just("agent"), st.sampled_from(TROUBLE), nodes)
management = st.tuples(st.just("agent"), st.sampled_from(["drain", "enable", "remove_node"]), nodes)
finish = st.tuples(st.just("finish"), numbers, st.sampled_from([0, 0, 0, 1]))
kill = st.tuples(st.just("kill"), numbers)
scale = st.tuples(st.just("scale"), numbers, st.integers(0, 5))
resize = st.tuples(st.just("resize"), nodes, st.integers(1, 6))
limit = st.tuples(st.just("limit"), st.sampled_from("ab"), st.sampled_from([None, 2, 5, 8]))
advance = st.tuples(st.just("advance"), st.sampled_from([1, 3, 6]))
restart = st.tuples(st.just("restart"))


def submit(job: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just("submit"), job)


def broken(job: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just("break"), st.sampled_from(["failed", "unknown", "unknown, written"]), job)


def flood(cpu: int) -> st.SearchStrategy[Step]:
    """Many jobs of one task at once: where nothing limits them, they are placed a node at a time."""
    job = {"count": 1, "cpu": cpu, "queue": "root.a", "user": "bob"}
    return st.tuples(st.just("submit"), st.sampled_from([job, {**job, "gpu": "0.5"}]), st.integers(8, 20))


def steps(*kinds: st.SearchStrategy[Any], most: int = 25) -> st.SearchStrategy[Steps]:
    return st.lists(st.one_of(*kinds), min_size=10, max_size=most)


anything = steps(
    submit(documents), submit(documents), submit(documents), finish, finish, kill, scale, resize, limit, trouble,
    management, advance, restart, broken(documents),
)  # fmt: skip
trouble_with_gangs = steps(
    submit(gangs), submit(gangs), trouble, trouble, trouble, finish, kill, advance, restart, broken(gangs), management
)
crowds = steps(submit(documents), submit(documents), submit(documents), finish, finish, scale, resize, limit, most=35)
unlimited_crowds = steps(
    submit(documents), submit(documents), finish, finish, finish, kill, resize, flood(1), flood(2), trouble, management
)


# -- 1, 2, 4: over-commit, gangs, work left over -----------------------------------------------------------------


@settings(max_examples=40)
@given(anything)
def test_no_overcommit_ever(drawn: Steps) -> None:
    Play().run(drawn)


@settings(max_examples=20)
@given(unlimited_crowds)
def test_no_overcommit_ever_in_a_flood_without_limits(drawn: Steps) -> None:
    Play(**UNLIMITED).run(drawn)


@settings(max_examples=60)
@given(trouble_with_gangs)
def test_gangs_are_atomic_under_any_trouble(drawn: Steps) -> None:
    Play().run(drawn)


@settings(max_examples=40)
@given(crowds)
def test_work_conserving(drawn: Steps) -> None:
    Play().run(drawn)


@pytest.mark.long
@settings(max_examples=3_000)
@given(unlimited_crowds)
def test_no_overcommit_ever_in_a_flood_without_limits_for_long(drawn: Steps) -> None:
    Play(**UNLIMITED).run(drawn)


@pytest.mark.long
@settings(max_examples=5_000)
@given(anything | trouble_with_gangs | crowds)
def test_no_overcommit_gangs_atomic_and_work_conserving_for_long(drawn: Steps) -> None:
    Play().run(drawn)


# -- 3: requests -------------------------------------------------------------------------------------------------

CLIENTS = 5
requests = steps(
    *[st.tuples(st.just("ask"), st.integers(0, CLIENTS - 1))] * 3,
    st.tuples(st.just("break"), st.sampled_from(["failed", "unknown", "unknown, written"])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("cycle")),
    st.tuples(st.just("advance"), st.sampled_from([1, 4])),
    most=30,
)


class Clients:
    """Submitters that choose no id, only a key, and ask again until they have an answer, and sometimes after it."""

    def __init__(self) -> None:
        self.w = World({"keep_ended": "5s", "keep_keys": "1h", "launch_timeout": "1h"})
        jobs = defaultdict(lambda: Wanted(3, 1, cpu=1, gpu=0, on_loss="replace", loose=True))
        self.agents = self.w.fleets["default"] = Watch(jobs, {**NODES, "n9": {"cpu": 1}})
        for name, has in NODES.items():
            self.w.node(name, **has)
        self.w.cycle()
        self.w.answers()
        self.asked: list[int] = []
        self.ids: dict[int, set[str]] = {}

    def do(self, name: str, *given: Any) -> None:
        if name == "ask":
            self.ask(*given)
        elif name == "break":
            how, _, written = given[0].partition(", ")
            self.w.break_journal(how, bool(written))
        else:
            getattr(self.w, name)(*given)
            self.read_answers()

    def ask(self, client: int) -> None:
        stage = {"name": "w", "count": 1 + client % 3, "resources": {"cpu": 1}, "min": 1 if client % 2 else None}
        spec = parse_job({"name": f"job-{client}", "user": "ann", "stages": [stage]})
        self.w._send("default", Submit(spec=spec, user="ann", key=f"key of {client}"))
        self.asked.append(client)

    def read_answers(self) -> None:
        answers = self.w.answers()
        for client, answer in zip(self.asked, answers, strict=False):
            if isinstance(answer, Rejected):
                assert answer.code == "unavailable"
            else:
                assert isinstance(answer, Accepted) and answer.job
                self.ids.setdefault(client, set()).add(answer.job)
        del self.asked[: len(answers)]

    def settle(self) -> None:
        """Repeat every request: those without an answer until they have one, the others once more."""
        self.do("cycle")
        self.w.node("n9", cpu=1)  # a journal that is still to break breaks here
        self.w.cycle()
        self.w.answers()
        for client in range(CLIENTS):
            self.ask(client)
        self.do("cycle")
        assert not self.asked and sorted(self.ids) == [*range(CLIENTS)]


def no_request_lost_or_doubled(drawn: Steps) -> None:
    c = Clients()
    for step in drawn:
        c.do(*step)
    c.settle()
    assert {client: len(ids) for client, ids in c.ids.items()} == dict.fromkeys(range(CLIENTS), 1)
    # Every job has had a number of its own, also the forgotten ones.
    assert c.w.partition().counters.job == CLIENTS + 1
    jobs = {client: next(iter(ids)) for client, ids in c.ids.items()}
    assert all(c.w.job(job).name == f"job-{client}" for client, job in jobs.items())
    # Agents started every task, and none twice: (task, attempt) is unique, whatever was written or not.
    c.w.advance(10)
    assert c.agents.starts == {(job, index): 1 for client, job in jobs.items() for index in range(1 + client % 3)}
    for job in jobs.values():
        c.w.finish(job)
    c.w.advance(60)
    c.w.answers()
    c.settle()
    assert c.w.partition().counters.job == CLIENTS + 1 and not c.w.partition().jobs
    assert {client: len(ids) for client, ids in c.ids.items()} == dict.fromkeys(range(CLIENTS), 1)


@settings(max_examples=40)
@given(requests)
def test_no_request_is_lost_or_doubled_under_retries(drawn: Steps) -> None:
    no_request_lost_or_doubled(drawn)


@pytest.mark.long
@settings(max_examples=2_000)
@given(requests)
def test_no_request_is_lost_or_doubled_under_retries_for_long(drawn: Steps) -> None:
    no_request_lost_or_doubled(drawn)


# -- 5: lanes that share no node ---------------------------------------------------------------------------------

ZONES = ("a", "b")
OF_A_ZONE: list[dict[str, Any]] = [
    {"cpu": 4, "memory": "6Gi", "disk": 2},
    {"cpu": 3, "memory": "9Gi", "gpu": 2},
    {"cpu": 5, "memory": "4Gi", "disk": 3},
]
alone_jobs = st.fixed_dictionaries(
    {"count": st.integers(1, 4), "cpu": st.integers(1, 3)},
    optional={
        "min": st.just(1),
        "gpu": st.sampled_from(["0.25", "0.5", 1, 2]),
        "memory": st.sampled_from(["1Gi", "2Gi", "5Gi"]),
        "disk": st.integers(1, 2),
        "on_loss": st.sampled_from(["replace", "restart", "fail"]),
        "duration": st.sampled_from([1, 5]),
        "priority": st.integers(0, 2),
    },
)
zone_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(ZONES), st.just("submit"), alone_jobs),
        st.tuples(st.sampled_from(ZONES), st.just("submit"), alone_jobs),
        st.tuples(st.sampled_from(ZONES), st.just("kill"), numbers),
        st.tuples(
            st.sampled_from(ZONES),
            st.sampled_from(["refuse_launches", "silence", "fail_node", "return_node", "drain", "enable"]),
            st.integers(0, 2),
        ),
        st.tuples(st.just(""), st.just("advance"), st.sampled_from([1, 3, 7])),
        st.tuples(st.just(""), st.just("restart"), st.just(0)),
    ),
    min_size=8,
    max_size=25,
)


class Logged(Fleet):
    """Agents that log their launches and stops task by task; how many tasks share a message does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.log: dict[str, list[Any]] = {}

    def deliver(self, effects: Iterable[object], now: int) -> None:
        effects = list(effects)
        for effect in effects:
            if isinstance(effect, ForNode):
                log = self.log.setdefault(effect.node, [])
                for stop in effect.stops:
                    log += [(now, stop.job, index, stop.attempt, stop.cause) for index in indices(stop.indices)]
                for one in effect.launches:
                    each_has = len(one.devices) // count(one.indices)
                    log += [
                        (now, one.job, index, one.attempt, one.devices[at * each_has : (at + 1) * each_has])
                        for at, index in enumerate(indices(one.indices))
                    ]
        super().deliver(effects, now)


def orders_of(zones: Iterable[str], order: str, drawn: Steps) -> dict[str, list[Any]]:
    """Return what the nodes of these zones are told if only the steps of these zones are done, at their times."""
    w = World({"launch_timeout": "4s", "lease": "4s", "heartbeat": "1s", "replace_within": "6s"})
    w.queue("root.q", order=order)
    agents = w.fleets["default"] = Logged()
    jobs: dict[str, list[str]] = {zone: [] for zone in zones}
    for zone in jobs:
        for number, has in enumerate(OF_A_ZONE):
            w.node(f"{zone}{number}", labels={"zone": zone}, **has)
    w.cycle()
    for zone, name, value in drawn:
        if name == "advance":
            w.advance(value)
        elif name == "restart":
            w.restart()
        elif zone not in jobs:
            continue
        elif name == "submit":
            document = dict(value)
            priority = document.pop("priority", 0)
            wanted = {key: document.pop(key) for key in ("cpu", "gpu", "memory", "disk") if key in document}
            stage = {"name": "w", "selectors": {"zone": zone}, "resources": wanted, **document}
            jobs[zone].append(w.submit(name=zone, queue="root.q", priority=priority, stages=[stage]))
        elif name == "kill":
            if jobs[zone]:
                w.kill(jobs[zone][value % len(jobs[zone])])
        else:
            getattr(w, name)(f"{zone}{value}")
        w.advance(0)
    w.advance(20)
    return agents.log


def lanes_apart(order: str, drawn: Steps) -> None:
    assert orders_of("ab", order, drawn) == orders_of("a", order, drawn) | orders_of("b", order, drawn)


@settings(max_examples=25)
@given(st.sampled_from(sorted(ORDERS)), zone_steps)
def test_lanes_without_shared_nodes_never_influence_each_other(order: str, drawn: Steps) -> None:
    lanes_apart(order, drawn)


@pytest.mark.long
@settings(max_examples=1_500)
@given(st.sampled_from(sorted(ORDERS)), zone_steps)
def test_lanes_without_shared_nodes_never_influence_each_other_for_long(order: str, drawn: Steps) -> None:
    lanes_apart(order, drawn)


def test_lanes_without_shared_nodes_never_influence_which_of_two_nodes_is_the_fuller() -> None:
    """More is free of one resource on one node, and of another on the other node."""
    placed = []
    for others in ([], ["other"]):
        w = World()
        w.node("x", cpu=5, memory="3Gi", labels={"zone": "a"})
        w.node("y", cpu=4, memory="9Gi", labels={"zone": "a"})
        w.node("z", cpu=4, memory="9Gi", labels={"zone": "b"})
        for name in others:
            asked = {"selectors": {"zone": "b"}, "resources": {"cpu": 1, "memory": "5Gi"}}
            w.submit(name=name, stages=[asked])
        job = w.submit(stages=[{"selectors": {"zone": "a"}, "resources": {"cpu": 1, "memory": "1Gi"}}])
        w.cycle()
        placed.append(w.placements(job))
    assert placed[0] == placed[1]


# -- 6: the same commands, the same bytes ------------------------------------------------------------------------

CHILD = """
from hashlib import blake2b
from fairlead.core.dump import dump
from fairlead.core.policy.order import ORDERS
from fairlead.journal import MemoryJournal
from fairlead.journal.codec import stream_of
from fairlead.testing import World
from tests.kill_child import PARTITION, Driver
from tests.test_recovery import SCENES

def say(*what):
    print(blake2b(repr(what).encode()).hexdigest()[:16], what[0])

for name, play in SCENES.items():
    w = World()
    for step, _ in enumerate(play(w)):
        waiting = [str(why) for job in w.partition().jobs for why in w.explain(job)]
        say(f"{name} {step}", w.effects(), w.lanes(), waiting, [w.dump(each) for each in w.cluster.writers])
for seed in range(3):
    driver = Driver(MemoryJournal(), seed)
    driver.begin()
    for _ in range(100):
        driver.cycle()
    say(f"seed {seed}", dump(driver.state), [each.payload for each in driver.writer.journal.read(stream_of(PARTITION))])
"""


def test_the_same_commands_in_the_same_order_give_the_same_bytes() -> None:
    """In two processes, which order their sets and hash their strings in different ways."""
    root = Path(__file__).parents[2]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    said = [child.communicate(timeout=120)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert len(said[0]) > 30
    assert said[0] == said[1]


# -- 7: restarts -------------------------------------------------------------------------------------------------


def restarts_change_nothing(drawn: Steps) -> None:
    """Compare a control plane that restarts after every cycle with one that never does."""
    plain, restarted = Play(looking=False), Play(looking=False, restarts=True)
    for step in drawn:
        plain.do(*step)
        restarted.do(*step)
        assert observed(restarted.w) == observed(plain.w)
    assert restarted.agents.starts == plain.agents.starts


def observed(w: World) -> tuple[Any, ...]:
    """Return all that a user sees except reasons, which date from the last look at a lane; a restart looks again."""
    return w.dump(), w.effects(), w.lanes(), {job: (w.job(job), w.placements(job)) for job in w.partition().jobs}


@settings(max_examples=30)
@given(anything | trouble_with_gangs)
def test_a_restart_between_any_two_steps_changes_nothing_observable(drawn: Steps) -> None:
    restarts_change_nothing(drawn)


@pytest.mark.long
@settings(max_examples=1_500)
@given(anything | trouble_with_gangs)
def test_a_restart_between_any_two_steps_changes_nothing_observable_for_long(drawn: Steps) -> None:
    restarts_change_nothing(drawn)


while_not_ready = steps(
    submit(documents), finish, kill, scale, limit, trouble, management, advance, advance, broken(documents), most=12
)


def nothing_until_ready(before: Steps, drawn: Steps) -> None:
    play = Play(looking=False)
    play.w.node("dark", cpu=8, taints=["dark"])  # its agent stays silent, and no task may run there
    play.w.cycle()
    play.run(before)
    play.w.restart(ready=False)
    play.w.effects()
    for step in drawn:
        live = play.live()
        play.do(*step)
        assert not play.w.partition().readiness.ready
        messages = [effect for effect in play.w.effects() if isinstance(effect, ForNode)]
        assert not [message for message in messages if message.launches], "something was placed"
        if step[0] == "advance":
            now = play.live()
            gone = [key for key, was in live.items() if now.get(key) != was and not play.is_done(*key)]
            # An agent may report at any time that it refuses a launch from before the restart.
            expired = [
                key for key in gone if not play.w.task(key[0], "w", key[1]).reason.endswith("refused the launch")
            ]
            assert not expired, "something expired"
    play.w.mark_ready()
    play.w.advance(0)
    assert play.w.partition().readiness.ready and not overlooked(play.w.partition())


# A task that does not stop for another one: its use and the claim both count against the limit.
CLAIM_OPEN: tuple[Steps, Steps] = (
    [
        ("submit", {"count": 3, "min": 1, "cpu": 2, "queue": "root.b"}),
        ("agent", "silence", "n0"),
        ("submit", {"count": 2, "min": 1, "cpu": 3, "priority": 2, "queue": "root.b"}),
    ],
    [("submit", {"queue": "root.b", "count": 1, "cpu": 1})],
)


@settings(max_examples=30)
@given(anything, while_not_ready)
@example(*CLAIM_OPEN)
def test_nothing_is_placed_or_expires_until_ready(before: Steps, drawn: Steps) -> None:
    nothing_until_ready(before, drawn)


@pytest.mark.long
@settings(max_examples=1_500)
@given(anything, while_not_ready)
def test_nothing_is_placed_or_expires_until_ready_for_long(before: Steps, drawn: Steps) -> None:
    nothing_until_ready(before, drawn)
