"""Worked cases of Mantis' ask registry on our lanes: upsert, order, cancel, readiness, launches.

A worker is a task here, a constraint a shape, an executor a node, and being in flight is being the head that is tried.
Rows with an id are published cases; the others follow from the same rules. `NOT_OURS` names the published cases that
Fairlead decides differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fairlead.core.commands import Accepted
from fairlead.core.effects import ForNode, Launch
from fairlead.core.policy.pool_size import nodes_to_add, nodes_to_give_back
from fairlead.core.why.reasons import NoCapacity
from fairlead.testing import World

PUBLISHED = """
registry-01 registry-03 registry-05 registry-07 registry-09 registry-11 registry-13 registry-15 registry-17 registry-19
registry-21 registry-23 divergence-02 scaler-01 scaler-03 scaler-05 scaler-07 scaler-09 scaler-11 usage-01 usage-03
usage-05 usage-07 usage-09 client-02 assign-01 assign-03 match-02 te-01
""".split()

NOT_OURS = {
    "registry-15": "equal ones go by arrival, not by the job's name (the rows `as registry-15`)",
    "registry-19": "a stage has one ask a kind; one that grows before it started gets a new ask (`as registry-19`)",
    "registry-21": "there is no interval: what arrives is tried in the same cycle (`as registry-21`)",
    "match-02": "nodes have no generation: the fullest goes first, then the one that joined first (`as match-02`)",
    "usage-05": "demand for a pool that has no nodes counts: it grows from none (`as usage-05`)",
}

SHAPES: dict[str, dict[str, Any]] = {
    "A": {"size": "sku-a", "attr": "1"},
    "B": {"size": "sku-b"},
    "C": {"j2": "v2"},
}


class Story:
    """A world without room, and steps in words. Each step is one cycle.

    - `jobC 1:B:4 2:C:5 ^3`: submit a job with stages (name, shape, tasks), at a priority; a second time: the same again
    - `scale job/1 3`, `cancel job/1`, `front job/1`, `tail job`, `kill job`, `lose job/1 0`
    - `restart`: not ready; `ready`; `+1`: a second passes; `room 2`: a node for two tasks; `full`: no more room there
    - `= A jobA/1:3 jobB/1:2@0; B …`: the lanes in order, with when they asked if that matters
    - `! jobA/1 …`: the asks that were tried, and for which there was no room
    """

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self.w = World()
        self.w.queue("root.q", **(settings or {}))
        self.letters: dict[str, str] = {}
        self.rooms: list[str] = []
        for letter in "ABC":
            self.w.node(f"busy-{letter}", cpu=100, labels=SHAPES[letter])
            filler = [self.stage("main", letter, 1, cpu=100)]
            self.w.submit(name="filler", queue="root.q", preemptible=False, stages=filler)
        self.w.advance(0)  # otherwise later reports of these nodes would help to make the world ready after a restart

    def stage(self, name: str, letter: str, count: int, **rest: Any) -> dict[str, Any]:
        """A stage of workers, each of which is replaced when it is lost."""
        resources, selectors = {"cpu": 1, **rest}, SHAPES.get(letter, {})
        return {"name": name, "count": count, "resources": resources, "selectors": selectors, "on_loss": "replace"}

    def tell(self, steps: Iterable[str]) -> World:
        for step in steps:
            word, *rest = step.split()
            if word == "=":
                assert self.lanes(any("@" in each for each in rest)) == step[1:].strip()
            elif word == "!":
                assert self.tried() == rest
            else:
                self.do(word, rest)
                self.w.cycle()
        return self.w

    def do(self, word: str, rest: list[str]) -> None:
        w = self.w
        job, _, stage = rest[0].partition("/") if rest else ("", "", "")
        if word == "restart":
            w.restart(ready=False)
        elif word == "ready":
            w.mark_ready()
        elif word.startswith("+"):
            w.advance(float(word))
        elif word == "room":
            self.rooms.append(f"room-{len(self.rooms)}")
            w.node(self.rooms[-1], cpu=int(rest[0]))
        elif word == "full":
            for name in self.rooms:
                w.drain(name)
        elif word == "scale":
            w.scale(job, stage, int(rest[1]))
        elif word == "cancel":
            w.cancel(job, stage)
        elif word == "front":
            w.prioritise(job, stage)
        elif word == "tail":
            w.reset_lane("root.q", job)
        elif word == "kill":
            w.kill(job)
        elif word == "lose":
            index = int(rest[1])
            node = w.placements(job).get((stage, index), self.rooms[0])
            w.report(job, stage, index, w.task(job, stage, index).attempt, "lost", node)
        else:
            self.submit(word, rest)

    def submit(self, name: str, words: list[str]) -> None:
        stages = []
        for stage, letter, count in (each.split(":") for each in words if ":" in each):
            stages.append(self.stage(stage, letter, int(count)))
            self.letters[f"{name}/{stage}"] = letter
        priority = sum(int(each[1:]) for each in words if each.startswith("^"))
        assert self.w.submit(name=name, key=name, queue="root.q", priority=priority, stages=stages) == name

    def lanes(self, times: bool) -> str:
        texts = []
        for lane in self.w.lanes().values():
            names = [f"{ask.job}/{ask.stage}" for ask in lane]
            when = [f"@{ask.asked:g}" if times else "" for ask in lane]
            counts = [f"{name}:{each.count}{at}" for name, each, at in zip(names, lane, when, strict=True)]
            texts.append(" ".join([self.letters[names[0]], *counts]))
        return "; ".join(sorted(texts))

    def tried(self) -> list[str]:
        found = []
        for lane in self.w.lanes().values():
            for ask in lane:
                reasons = {(why.stage, why.kind): why.reason for why in self.w.explain(ask.job)}
                if isinstance(reasons[ask.stage, ask.kind], NoCapacity):
                    found.append(f"{ask.job}/{ask.stage}")
        return sorted(found)


STORIES: list[tuple[str, str]] = [
    (
        "registry-01",
        """restart | jobA 1:A:3 | jobB 2:A:2 | jobC 1:B:4 2:C:5 | jobD 2:C:6 | ! | ready
        | = A jobA/1:3 jobB/2:2; B jobC/1:4; C jobC/2:5 jobD/2:6 | ! jobA/1 jobC/1 jobC/2""",
    ),
    (
        "registry-03",
        """restart | job-dedupe 0:D:5 | ready | = D job-dedupe/0:5 | +1 | behind 0:D:1 | +1 | job-dedupe 0:D:5
        | = D job-dedupe/0:5@0 behind/0:1@1 | ! job-dedupe/0""",
    ),
    (
        "registry-05",
        """restart | job-down 2:S:4 | +1 | scale job-down/2 5 | +1 | scale job-down/2 3 | ready | = S job-down/2:3@1
        | ! job-down/2""",
    ),
    (
        "registry-07",
        """restart | job-1 1:I:1 | +1 | job-2 1:I:1 | ready | = I job-1/1:1 job-2/1:1 | ! job-1/1
        | +0 | = I job-1/1:1 job-2/1:1 | ! job-1/1""",
    ),
    (
        "registry-09",
        """restart | job-1 1:K:1 | +1 | job-2 1:K:1 | ready | ! job-1/1 | cancel job-1/1 | = K job-2/1:1 | ! job-2/1
        | cancel job-1/1 | = K job-2/1:1""",
    ),
    (
        "registry-13",
        """room 2 | job-high 1:P:1 | job-medium 1:P:1 | full | restart | job-low 1:P:1 | lose job-high/1 0
        | scale job-medium/1 2 | ready | = P job-high/1:1 job-medium/1:1 job-low/1:1 | ! job-high/1""",
    ),
    (
        "as registry-15: by arrival",
        "restart | job-c 1:P:1 | job-a 1:P:1 | job-b 1:P:1 | ready | = P job-c/1:1 job-a/1:1 job-b/1:1 | ! job-c/1",
    ),
    (
        "as registry-15: stages as they are written",
        "restart | job 2:P:1 1:P:1 | ready | = P job/2:1 job/1:1 | ! job/2",
    ),
    (
        "registry-17",
        """room 3 | job 3:Z:3 | full | lose job/3 1 | = Z job/3:1@0 | +1 | lose job/3 2 | lose job/3 1
        | = Z job/3:2@0""",
    ),
    (
        "as registry-19: before it started",
        """restart | job-1 1:K:1 | +1 | job-2 1:K:1 | ready | ! job-1/1 | +1 | scale job-1/1 2
        | = K job-2/1:1@1 job-1/1:2@2 | room 1 | = K job-1/1:2 | room 1 | = K job-1/1:2 | room 2 | =""",
    ),
    (
        "as registry-19: after it started",
        """restart | job-1 1:K:1 | +1 | job-2 1:K:1 | ready | room 1 | = K job-2/1:1 | scale job-1/1 2
        | = K job-1/1:1 job-2/1:1 | room 1 | = K job-2/1:1""",
    ),
    ("as registry-21", "+0.1 | job-x 1:K:1 | = K job-x/1:1 | ! job-x/1"),
    (
        "registry-23",
        """restart | j 1:K:2 2:K:1 | j 1:K:2 2:K:1 | = K j/1:2 j/2:1 | restart | j 1:K:2 2:K:1 | = K j/1:2 j/2:1 | !
        | ready | = K j/1:2 j/2:1 | ! j/1""",
    ),
    ("client-02", "j 1:K:1 2:K:2 3:A:1 | = A j/3:1; K j/1:1 j/2:2 | kill j | = | kill j | ="),
    # Targets.
    ("an equal target keeps its place", "a 1:K:2 | b 1:K:1 | +1 | scale a/1 2 | = K a/1:2@0 b/1:1@0"),
    ("a smaller one too, a larger one does not", "a 1:K:3 | b 1:K:1 | +1 | scale a/1 2 | = K a/1:2@0 b/1:1@0"),
    ("an ask that grows and shrinks back has a new time", "a 1:K:1 | +1 | scale a/1 2 | scale a/1 1 | = K a/1:1@1"),
    ("what grows again is one ask", "room 1 | a 1:K:1 | scale a/1 2 | +1 | scale a/1 4 | = K a/1:3@1"),
    ("and one that shrinks again keeps its place", "room 1 | a 1:K:1 | scale a/1 4 | +1 | scale a/1 3 | = K a/1:2@0"),
    ("growth that is not wanted any more is gone", "room 1 | a 1:K:1 | scale a/1 4 | scale a/1 1 | ="),
    ("nothing is complete at once", "a 1:K:2 | b 1:K:1 | scale a/1 0 | = K b/1:1 | ! b/1"),
    ("a lost task is not replaced after a scale-down", "room 2 | a 1:K:2 | full | lose a/1 1 | scale a/1 1 | ="),
    # Order.
    ("priority within a kind", "a 1:P:1 | b 1:P:1 ^2 | c 1:P:1 ^2 | +1 | d 1:P:1 ^3 | = P d/1:1 b/1:1 c/1:1 a/1:1"),
    (
        "what a gang needs before priority, and all kinds of one stage at once",
        """room 2 | a 1:P:2 | full | b 1:P:1 ^9 | scale a/1 5 | lose a/1 0 | = P a/1:1 b/1:1 a/1:3""",
    ),
    ("kind within a priority", "room 2 | a 1:P:2 | full | b 1:P:1 | scale a/1 5 | = P a/1:3 b/1:1"),
    ("stages of one job in other lanes wait for themselves", "a 1:A:1 2:B:1 | room 1 | = A a/1:1; B a/2:1 | ! a/1 a/2"),
    ("the next head follows at once", "a 1:K:2 | b 1:K:2 | c 1:K:1 | room 4 | = K c/1:1 | ! c/1"),
    ("no ask passes the head of a lane", "a 1:K:3 | b 1:K:1 | room 2 | = K a/1:3 b/1:1 | ! a/1"),
    ("but a head that could never fit", "a 1:K:400 | b 1:K:1 | room 2 | = K a/1:400 | !"),
    # Moving.
    (
        "to the front",
        "a 1:K:1 ^5 | b 1:K:1 | c 1:K:1 | front c/1 | front b/1 | = K b/1:1 c/1:1 a/1:1 | room 1 | = K c/1:1 a/1:1",
    ),
    ("a stuck head to the tail", "a 1:K:3 ^5 | b 1:K:1 | room 1 | = K a/1:3 b/1:1 | tail a | = K a/1:3"),
    ("arrivals join the head's round", "a 1:K:3 ^5 | b 1:K:2 | tail a | c 1:K:1 ^1 | = K c/1:1 b/1:2 a/1:3"),
    ("an ask behind a head that was cancelled", "a 1:K:3 | b 1:K:1 | room 2 | = K a/1:3 b/1:1 | cancel a/1 | ="),
    ("an ask behind a head that was killed", "a 1:K:3 | b 1:K:1 | room 2 | = K a/1:3 b/1:1 | kill a | ="),
    ("cancelling one stage leaves the others", "a 1:K:1 2:K:2 3:A:1 | cancel a/2 | = A a/3:1; K a/1:1 | ! a/1 a/3"),
]


@pytest.mark.parametrize("steps", [pytest.param(row[1], id=row[0]) for row in STORIES])
def test_lanes(steps: str) -> None:
    w = Story().tell(each.strip() for each in steps.split("|"))
    assert all(isinstance(answer, Accepted) for answer in w.answers())


MIXED = "room 3 | a 1:P:2 | b 1:P:1 | full | new 1:P:1 ^1 | +1 | later 1:P:1 ^2 | scale b/1 2 | lose a/1 1"
ORDERS: list[tuple[str, dict[str, Any], str]] = [
    ("priority", {}, "a/1:1 later/1:1 new/1:1 b/1:1"),
    ("fifo", {"order": "fifo"}, "a/1:1 b/1:1 new/1:1 later/1:1"),
    ("fair, of one user", {"order": "fair"}, "a/1:1 later/1:1 new/1:1 b/1:1"),
    ("priority, scale among new", {"scale_first": False}, "a/1:1 later/1:1 new/1:1 b/1:1"),
    ("fifo, scale among new", {"order": "fifo", "scale_first": False}, "a/1:1 new/1:1 later/1:1 b/1:1"),
    ("fair, scale among new", {"order": "fair", "scale_first": False}, "a/1:1 later/1:1 new/1:1 b/1:1"),
]


@pytest.mark.parametrize(("settings", "order"), [row[1:] for row in ORDERS], ids=[row[0] for row in ORDERS])
def test_order(settings: dict[str, Any], order: str) -> None:
    """What a gang needs first, then by the order of the queue; also after a restart."""
    Story(settings).tell([*MIXED.split(" | "), f"= P {order}", "restart", f"= P {order}", "ready", f"= P {order}"])


# -- launches ----------------------------------------------------------------------------------------------------


def small(nodes: int, cpu: int = 1, **config: Any) -> World:
    w = World(config)
    w.nodes(nodes, cpu=cpu)
    w.cycle()
    return w


def submit(w: World, *names: str, count: int = 1, **rest: Any) -> list[str]:
    stage = {"name": "w", "count": count, "resources": {"cpu": 1}, **rest}
    return [w.submit(name=name, stages=[stage]) for name in names]


def launches(w: World) -> list[tuple[str, Launch]]:
    return [(effect.node, one) for effect in w.effects() if isinstance(effect, ForNode) for one in effect.launches]


def order(w: World) -> list[tuple[str, float]]:
    (lane,) = w.lanes().values()
    return [(ask.job, ask.waiting_since) for ask in lane]


def test_an_unanswered_launch_is_sent_again() -> None:
    """registry-11, with our rule that the silent node is left alone for a second first."""
    w = small(1, launch_timeout="150ms")
    w.hold_acks("n0")
    (job,) = submit(w, "job-timeout")
    w.cycle()
    assert [one.attempt for _, one in launches(w)] == [1]
    w.advance(0.14)
    assert (w.task(job, "w", 0).state, launches(w)) == ("assigned", [])
    w.advance(0.06)
    assert (w.task(job, "w", 0).state, order(w)) == ("pending", [(job, 0)])
    w.advance(1)
    assert [one.attempt for _, one in launches(w)] == [2]
    w.release_acks("n0")
    w.advance(0)
    assert (w.task(job, "w", 0).state, w.task(job, "w", 0).attempt) == ("running", 2)


def test_a_failed_launch_goes_to_the_tail() -> None:
    """divergence-02 as in the seed: b, then a, which has waited since it was submitted; arrivals go before a."""
    w = small(1)
    w.refuse_launches("n0")
    w.advance(1)
    a, b = submit(w, "a", "b")
    w.cycle()
    assert [one.job for _, one in launches(w)] == [a]
    w.advance(0.5)
    assert order(w) == [(b, 1), (a, 1)]
    (c,) = submit(w, "c")
    w.cycle()
    assert order(w) == [(b, 1), (c, 1.5), (a, 1)]
    w.restart()
    w.return_node("n0")
    w.node("n1", cpu=2)
    w.advance(1)
    assert not w.lanes() and w.task(a, "w", 0).attempt == 2


def test_a_launch_that_fails_once() -> None:
    """assign-01: error, then ok: two launches, one that runs, nothing left to wait."""
    w = small(1)
    w.refuse_launches("n0")
    (job,) = submit(w, "job")
    w.advance(0)
    w.return_node("n0")
    w.advance(2)
    assert [(one.job, one.attempt) for _, one in launches(w)] == [(job, 1), (job, 2)]
    assert (w.task(job, "w", 0).state, w.task(job, "w", 0).tries_used, w.lanes()) == ("running", 0, {})


def test_two_asks_and_two_nodes() -> None:
    """assign-03: one cycle, two launches."""
    w = small(2)
    one, two = submit(w, "job-1", "job-2")
    w.cycle()
    assert sorted((node, each.job, each.indices) for node, each in launches(w)) == [
        ("n0", one, (0, 1)),
        ("n1", two, (0, 1)),
    ]
    assert not w.lanes()


def test_which_nodes_are_taken() -> None:
    """As match-02, with our rule: of equal nodes those that joined first."""
    w = World()
    for name in ("te2", "te3", "te1"):
        w.node(name, cpu=1)
    (job,) = submit(w, "job", count=2)
    w.cycle()
    assert w.placements(job) == {("w", 0): "te2", ("w", 1): "te3"}


def test_the_states_of_a_node_and_its_task() -> None:
    """te-01: each step, and what task 0 does then. A disabled node keeps what runs there and gets nothing new."""
    w = World()
    (job,) = submit(w, "job")
    seen = []

    def step(name: str, seconds: float = 0) -> None:
        w.advance(seconds)
        partition = w.partition()
        state = (
            partition.nodes.state[partition.nodes.rows[partition.nodes.joins["te"]]]
            if "te" in partition.nodes.joins
            else "-"
        )
        seen.append((name, state, w.task(job, "w", 0).state))

    step("unregistered")
    w.node("te", cpu=1)
    w.hold_acks("te")
    step("register, assign")
    w.report(job, "w", 0, 1, "refused")
    step("unassign")
    w.release_acks("te")
    step("assign, report occupied", 1)
    w.report(job, "w", 0, 2, "lost")
    step("report available: the worker is lost, and replaced")
    w.disable("te")
    step("disable")
    w.report(job, "w", 0, 3, "lost")
    step("disabled, worker lost")
    w.enable("te")
    step("enable")
    w.fail_node("te")
    step("disconnect")
    w.return_node("te")
    step("register again")
    assert seen == [
        ("unregistered", "-", "pending"),
        ("register, assign", "up", "assigned"),
        ("unassign", "up", "pending"),
        ("assign, report occupied", "up", "running"),
        ("report available: the worker is lost, and replaced", "up", "running"),
        ("disable", "disabled", "running"),
        ("disabled, worker lost", "disabled", "pending"),
        ("enable", "up", "running"),
        ("disconnect", "lost", "pending"),
        ("register again", "up", "running"),
    ]
    assert w.task(job, "w", 0).attempt == 5


# -- how large a pool should be ----------------------------------------------------------------------------------

# Idle nodes, pending ones, all of them → the size that the pool should have; 5 to 10 stay idle, 5 to 20 are there.
SIZES = [
    ("scaler-01", 8, 5, 8, 10),
    ("scaler-03", 18, 3, 18, 13),
    ("scaler-05", 8, 2, 8, 8),
    ("scaler-07", 4, 0, 4, 5),
    ("scaler-09", 3, 40, 15, 20),
    ("nothing waits, as many as may be idle", 10, 0, 12, 12),
    ("never below the least", 6, 0, 5, 5),
]


@pytest.mark.parametrize(("name", "idle", "pending", "total", "expected"), SIZES)
def test_the_size_of_a_pool(name: str, idle: int, pending: int, total: int, expected: int) -> None:
    more = nodes_to_add(idle=idle, pending=pending, ordered=0, min_idle=5, total=total, least=5)
    less = nodes_to_give_back(idle=idle, pending=pending, max_idle=10, min_idle=5, total=total, least=5)
    assert not (more and less)
    assert min(total + more - less, 20) == expected, "at most `max` nodes"


def test_not_ready_then_ready() -> None:
    """As scaler-11: before it is ready a pool neither grows nor shrinks, and the usage has no figures."""
    w = World({"ready_after": "1h"})
    w.nodes(4, cpu=1, pool="p")
    w.cycle()
    w.pool("p", node={"cpu": 1}, max=9, min_idle=1, max_idle=1, idle_for="1s")
    w.cycle()
    w.restart(ready=False)
    for step in range(6):
        w.advance(10)
        polled = (w.pools()["p"]["ready"], len(w.partition().nodes), len(w.partition().order_of))
        assert polled == ((False, 4, 0) if step < 3 else (True, 1, 0)), step
        if step == 2:
            w.mark_ready()
    w.restart(ready=False)
    w.submit(stages=[{"count": 5, "resources": {"cpu": 1}}])
    w.advance(10)
    assert not w.partition().orders
    w.mark_ready()
    w.cycle()
    assert len(w.partition().order_of) == 5, "four for the gang beside the existing node, and one spare node"


USAGE: list[tuple[str, dict[str, tuple[int, int]], dict[str, int], dict[str, tuple[int, int, int, int]]]] = [
    ("usage-01", {}, {}, {}),
    ("usage-03", {"small": (5, 5)}, {"small": 6}, {"small": (5, 5, 6, -1)}),
    ("as usage-05", {"small": (2, 2)}, {"large": 5}, {"small": (2, 2, 0, 2), "large": (0, 0, 5, -5)}),
    ("usage-07", {"small": (1, 1)}, {"small": 0}, {"small": (1, 1, 0, 1)}),
    ("usage-09", {"small": (3, 5)}, {"small": 4}, {"small": (3, 5, 4, -1)}),
]
"""Pool → its idle nodes and all its nodes, the demand → available, total, pending, idle.

Upstream subtracts waiting work from idle workers while it waits. Here work that fits does not wait, so the rows use a
gang that needs one node more than exist.
"""


@pytest.mark.parametrize(("name", "nodes", "asked", "expected"), USAGE)
def test_usage(
    name: str,
    nodes: dict[str, tuple[int, int]],
    asked: dict[str, int],
    expected: dict[str, tuple[int, int, int, int]],
) -> None:
    w = World()
    for pool in {**nodes, **asked}:
        w.pool(pool, node={"cpu": 1}, max=0)
    for pool, (idle, total) in nodes.items():
        w.nodes(total, prefix=f"{pool}-", cpu=1, pool=pool)
        for _ in range(total - idle):
            w.submit(stages=[{"resources": {"cpu": 1}, "pool": pool}])
        w.cycle()
    for pool, count in asked.items() if any(asked.values()) else ():
        w.submit(stages=[{"count": count, "resources": {"cpu": 1}, "pool": pool}])
    w.cycle()
    found = {
        pool: (each["available"], each["total"], each["pending"], each["idle"]) for pool, each in w.pools().items()
    }
    assert found == expected
    w.restart(ready=False)
    assert w.pools() == {pool: {"ready": False} for pool in expected}, "scaler-11"


# -- the list ----------------------------------------------------------------------------------------------------

TESTED = {row[0] for row in STORIES} | {"registry-11", "divergence-02", "assign-01", "assign-03", "te-01", "scaler-11"}
TESTED |= {row[0] for row in SIZES} | {row[0] for row in USAGE}


def test_every_published_case_is_tested_or_named() -> None:
    assert not TESTED & set(NOT_OURS)
    assert set(PUBLISHED) == TESTED & set(PUBLISHED) | set(NOT_OURS)
