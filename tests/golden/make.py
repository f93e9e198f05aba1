"""Writes a golden journal: `python tests/golden/make.py` from the root of the repository.

It makes the directory with the next number beside this file. A golden journal is never written again: it is what a
version of the program once wrote, and all later ones must read it. Make another one when a change was added, when a
record got a new field, or when the format's number rose; test_golden.py says so.

    cluster.records     the cluster's log
    partition.records   a partition's log in which every change occurs; the last record removes the partition
    removed.records     what is kept of the partition after its removal, since golden journal 9
    N.dump              the state after record N

A file of records is, for each, four bytes of length (big-endian) and the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fairlead.core.changes import ALL_CHANGES
from fairlead.core.cluster_config import ClusterConfigured, LeftMachine, Remains
from fairlead.core.commands import (
    Accepted,
    AddNode,
    BeginEra,
    BringToFront,
    CloseNodes,
    Command,
    Configure,
    DisconnectNodes,
    HoldJob,
    Kill,
    MarkReady,
    MoveNode,
    MovePool,
    MoveQueue,
    RegisterManager,
    ReleaseJob,
    RemoveManager,
    RemoveNode,
    RemovePartition,
    Report,
    Requeue,
    Scale,
    ScalePool,
    SetPriority,
    StopTasks,
    Submit,
    SubmitPipeline,
    UpdateJob,
    UpdateManager,
    UpdateNode,
)
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.dump import dump
from fairlead.core.invariants import check_all
from fairlead.core.resources import HOUR, SECOND
from fairlead.core.state import Counters
from fairlead.journal import MemoryJournal
from fairlead.journal.codec import CLUSTER_STREAM, decode, encode_cluster, encode_remains, stream_of
from fairlead.writer.writer import Writer

HERE = Path(__file__).parent
PARTITION = "golden"

FIRST = {
    "unit": "slots",
    "place": "pack",
    "seed": 3,
    "max_batch": 7,
    "lease": "90s",
    "backfill": "easy",
    "estimates": "learned",
    "rebalance_threshold": 5,
    "starving_after": "30min",
    "keep_ended": "2h",
    "share_memory": "1h",
    "requestors": [{"match": "^ci-", "queue": "root.ci"}],
    "queues": {
        "root": {
            "limit": {"cpu": 64},
            "ml": {
                "share": 60,
                "guarantee": {"gpu": 2},
                "limit": {"gpu": 8, "memory": "64Gi"},
                "submit": ["@ml", "ann"],
                "admin": ["eve"],
                "users": {"*": {"limit": {"cpu": 32}, "max_jobs": 9}, "ann": {"max_priority": 5}},
                "groups": {"ml": {"max_jobs": 8}},
                "max_priority": 2,
                "max_grace": "1min",
                "preemptible": False,
            },
            "ci": {"share": 30, "order": "fair", "scale_first": False, "max_jobs": 5},
            "old": {},
        }
    },
    "pools": {
        "gpu": {
            "node": {"cpu": 8, "gpu": 2},
            "labels": {"kind": "big"},
            "taints": ["gpu"],
            "min": 1,
            "max": 4,
            "max_idle": 1,
            "cost": 3,
            "min_free": {"gpu": 1},
            "provider": {"command": ["./cloud"]},
        }
    },
}
SECOND_CONFIG: dict[str, Any] = {
    "place": "pack",
    "held_nodes_percent": 0,
    "share_memory": "90min",
    "queues": {"root": {"ml": {"share": 50, "order": "fifo"}, "ci": {"share": 50}}},
    "pools": {},
}
GANG = {
    "name": "train",
    "user": "ann",
    "groups": ["ml"],
    "queue": "root.ml",
    "priority": 5,
    "labels": {"team": "vision"},
    "preemptible": False,
    "stages": [
        {
            "name": "w",
            "count": 4,
            "resources": {"cpu": 1, "gpu": 1, "memory": "1Gi"},
            "selectors": {"rack": ["r1", "r2"]},
            "tolerations": ["gpu"],
            "pool": "gpu",
            "command": ["train", "--fast"],
            "environment": {"MODE": "é"},
            "estimate": "2h",
            "time_limit": "3h",
            "tries": 3,
            "on_loss": "restart",
            "near": "rack",
        },
        {
            "name": "ps",
            "count": 2,
            "min": 1,
            "resources": {"cpu": 0.5},
            "scaling": "partial",
            "apart": True,
            "pty": True,
        },
    ],
}
PICKY = {
    "name": "picky",
    "user": "ann",
    "queue": "root.ml",
    "preempts": False,
    "stages": [{"where": ["zone in (a, b), !spot", "cores > 8"], "prefer": {"disk = ssd": 10}}],
}
ARRAY = {
    "name": "lint",
    "user": "ci-bot",
    "stages": [{"name": "a", "count": 30, "min": 1, "resources": {"cpu": 1}, "tries": 2}],
}

RING = {**ARRAY, "name": "ring", "stages": [{"count": 2, "resources": {"cpu": 4}, "on_loss": "replace"}]}
CREW = {**ARRAY, "name": "crew", "stages": [{"count": 2, "resources": {"cpu": 4}, "tries": 2, "on_failure": "restart"}]}
PART = {**ARRAY, "stages": [{"count": 3, "resources": {"cpu": 1}}]}
PAIR = {
    **ARRAY,
    "gang": "job",
    "stages": [
        {"name": "a", "count": 3, "min": 2, "resources": {"cpu": 2}},
        {"name": "b", "count": 1, "resources": {"cpu": 4}},
    ],
}


REMAINS = Remains(
    Counters(job=9, node_id=8, allocation=7, ask=6, front=5, order=4),
    (LeftMachine("gpu", "gpu-3-0", "no credentials"),),
)
SERVED = {
    **ARRAY,
    "name": "served",
    "done_when": {"stage": "worker"},
    "stages": [
        {
            "name": "ps",
            "resources": {"cpu": 1},
            "image": "/images/ps",
            "mounts": ["/data:/mnt/data:ro"],
            "snapshot": "0" * 64,
            "grace": "20s",
        },
        {"name": "worker", "resources": {"cpu": 1}},
    ],
}


class Script:
    """A writer, the time, and agents that the script controls."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.writer = Writer(self.journal, PARTITION)
        self.partition = self.writer.partition
        self.now = 1_700_000_000 * SECOND
        self.dumps: dict[int, bytes] = {}

    def cycle(self, *commands: Command, after: int = SECOND, alarm: bool = False) -> None:
        self.now += after
        done = self.writer.cycle(commands, self.now)
        if alarm:
            return
        refused = [answer for answer in done.answers if not isinstance(answer, Accepted)]
        refused += [item for answer in done.answers if isinstance(answer, Accepted) for item in answer.items]
        wrong = [each for each in refused if not getattr(each, "accepted", False)]
        assert not wrong, wrong
        check_all(self.partition)

    def keep(self) -> None:
        self.dumps[self.writer.seq] = dump(self.partition)

    def report(self, job: str, stage: str, state: Any, most: int = 1_000, **rest: Any) -> list[Report]:
        """Reports of the live tasks, or of the first of them."""
        found = self.partition.jobs[job].stage(stage)
        assert found is not None
        reports = []
        for index, allocation in sorted((found.live or {}).items())[:most]:
            node = self.partition.nodes.name[self.partition.nodes.rows[allocation.node]]
            block = (index, index + 1)
            common = {"node": node, "job": job, "stage": stage, "attempt": allocation.attempt, "operator": True}
            reports.append(Report(indices=block, state=state, **{"ran": 7 * SECOND, **common, **rest}))
        return reports


def configure(document: dict[str, Any], version: int) -> Configure:
    config = parse_config({"partitions": {PARTITION: document}})[PARTITION]
    return Configure(config=config, version=version, operator=True)


def node(name: str, **document: Any) -> AddNode:
    return AddNode(name=name, spec=parse_node({"name": name, **document})[1], operator=True)


def submit(name: str, document: dict[str, Any], **rest: Any) -> Submit:
    spec = parse_job(document)
    return Submit(spec=spec, id=name, user=spec.user, groups=spec.groups, **rest)


def play(s: Script) -> None:
    # A removed partition of this name has had job 1 to 3 and node 1.
    numbers = Counters(job=4, node_id=2, allocation=5, ask=4, front=2, order=3)
    s.cycle(msgspec.structs.replace(configure(FIRST, 1), numbers=numbers), MarkReady(operator=True))
    s.cycle(
        node("g0", resources={"cpu": 8, "gpu": 2, "memory": "8Gi"}, labels={"rack": "r1"}, taints=["gpu"], pool="gpu"),
        node("g1", resources={"cpu": 8, "gpu": 2, "memory": "8Gi"}, labels={"rack": "r2"}, taints=["gpu"], pool="gpu"),
        node("c0", resources={"cpu": 4, "licence/x": 3}, labels={"image.folder": "namespaces"}),
        node("c1", resources={"cpu": 4}),
    )
    plan_a_start(s)
    # A gang that could not replace a lost worker in time is taken back whole.
    s.cycle(submit("ring", RING))
    s.cycle(*s.report("ring", "main", "running"))
    s.cycle(MoveNode(name="c1", action="lose", operator=True))
    s.cycle(after=HOUR)
    s.keep()
    s.cycle(*s.report("ring", "main", "stopped"), MoveNode(name="c1", action="enable", operator=True))
    s.cycle(Kill(job="ring", operator=True))
    s.cycle(*s.report("ring", "main", "stopped"))
    # A member of a gang fails after another one has succeeded: both run again.
    s.cycle(submit("crew", CREW))
    s.cycle(*s.report("crew", "main", "running"))
    s.cycle(*s.report("crew", "main", "succeeded", 1))
    s.cycle(*s.report("crew", "main", "failed", exit_code=7))
    s.keep()
    s.cycle(Kill(job="crew", operator=True))
    s.cycle(*s.report("crew", "main", "stopped"))
    # A job is done with one of its stages, and the rest stops.
    s.cycle(submit("served", SERVED))
    s.cycle(*s.report("served", "worker", "succeeded"))
    s.keep()
    s.cycle(*s.report("served", "ps", "stopped"))
    # A task is replaced, another one killed; nodes are disabled for a time, by name and by label.
    s.cycle(submit("lint", ARRAY))
    s.cycle(*s.report("lint", "a", "running"))
    some = {"job": "lint", "stage": "a", "user": "ann", "operator": True}
    s.cycle(
        StopTasks(indices=(0, 1), action="replace", **some),
        StopTasks(indices=(1, 2), action="kill", **some),
        CloseNodes(labels=(("rack", "r1"),), lasts=HOUR, reason="switch", operator=True),
        MoveNode(name="c0", action="disable", lasts=2 * HOUR, operator=True),
    )
    s.keep()
    s.cycle(after=HOUR)
    s.keep()
    s.cycle(after=HOUR)
    s.cycle(Kill(job="lint", operator=True))
    s.cycle(*s.report("lint", "a", "stopped"))
    s.cycle(after=3 * HOUR)
    pair_up(s)
    s.cycle(submit("train", GANG, key="k1"), submit("part", PART))
    s.cycle(Scale(job="part", stage="main", count=2, operator=True))  # one task of an allocation stops
    s.cycle(submit("lint", ARRAY), submit("next", {**ARRAY, "after": ["train"]}))
    s.keep()
    # Half of a gang's launches are acknowledged, one of an array's fails and one is refused.
    s.cycle(*s.report("train", "w", "running"), *s.report("train", "ps", "running", 1))
    s.cycle(*s.report("lint", "a", "running", 3, ran=1_000))
    s.cycle(*s.report("lint", "a", "failed", 1, exit_code=3))
    s.cycle(*s.report("lint", "a", "refused", 6))
    s.cycle(*s.report("lint", "a", "succeeded", 1, exit_code=0))
    s.cycle(
        SetPriority(job="lint", priority=4, operator=True),
        BringToFront(job="lint", stage="a", operator=True),
        Scale(job="lint", stage="a", count=20, operator=True),
        Scale(job="train", stage="ps", count=4, operator=True),
    )
    s.cycle(
        submit(
            "later",
            {
                "queue": "root.ml",
                "user": "ann",
                "begin": 2_000_000_000,
                "done_when": {"stage": "main", "task": 0},
                "stages": [{}],
            },
        )
    )
    s.cycle(HoldJob(job="lint", user="ann", operator=True), Requeue(job="lint", user="ann", operator=True))
    s.keep()
    s.cycle(*s.report("lint", "a", "stopped"), ReleaseJob(job="lint", operator=True))
    s.cycle(Scale(job="train", stage="ps", count=1, operator=True))
    s.cycle(MoveNode(name="g1", action="lose", operator=True))
    s.keep()
    s.cycle(*s.report("train", "w", "stopped"))
    s.cycle(MoveNode(name="g1", action="enable", operator=True))
    s.cycle(
        UpdateNode(name="c1", spec=parse_node({"name": "c1", "resources": {"cpu": 1}})[1], operator=True),
        MoveNode(name="c0", action="drain", reason="disk swap", operator=True),
        RemoveNode(name="c1", operator=True),
    )
    manage(s)
    # Nodes are ordered for what waits; one comes, the others do not; a pool is paused, and scaled by hand.
    s.cycle(MovePool(pool="gpu", action="pause", operator=True))
    s.cycle(MovePool(pool="gpu", action="resume", operator=True), ScalePool(pool="gpu", nodes=4, operator=True))
    s.keep()
    coming = [name for order in s.partition.orders.values() for name in order.coming]
    resources = {"cpu": 8, "gpu": 2}
    s.cycle(node(coming[0], resources=resources, labels={"rack": "r1"}, taints=["gpu"], pool="gpu"))
    s.keep()
    s.cycle(after=HOUR)
    s.keep()
    s.cycle(submit("gone", {**ARRAY, "queue": "root.old"}), Kill(job="next", operator=True))
    s.cycle(Kill(job="gone", operator=True), MoveQueue(queue="root.ci", action="stop", operator=True))
    s.cycle(MoveQueue(queue="root.ci", action="start", operator=True), Kill(job="lint", operator=True, key="k2"))
    s.cycle(*s.report("lint", "a", "stopped"), *s.report("gone", "a", "stopped"), *s.report("part", "main", "lost"))
    s.cycle(configure(SECOND_CONFIG, 2))
    s.keep()
    s.cycle(Kill(job="train", user="ann"))
    s.cycle(*s.report("train", "w", "stopped"), *s.report("train", "ps", "stopped"))
    s.cycle(after=30 * HOUR)
    s.cycle(after=30 * HOUR)
    s.cycle(submit("last", ARRAY | {"queue": "root.ci"}), MoveNode(name="c0", action="enable", operator=True))
    # Quick tasks are sent ahead; one starts before its turn, and the rest are asked back.
    s.cycle(*s.report("last", "a", "succeeded", 4, ran=1_000))
    s.keep()
    s.cycle(s.report("last", "a", "running")[6])
    s.cycle(MoveNode(name="c0", action="drain", operator=True))
    s.keep()
    # Single tasks of many jobs, as many as fill a node or more.
    s.cycle(node("c2", resources={"cpu": 8, "gpu": 4}), Kill(job="last", operator=True))
    s.cycle(
        *(
            submit(f"unit{at}", {**ARRAY, "queue": "root.ml", "stages": [{"resources": {"gpu": "0.5"}}]})
            for at in range(9)
        )
    )
    s.keep()
    s.cycle(*s.report("unit0", "main", "succeeded"), *s.report("unit1", "main", "succeeded", ran=1_000))
    s.keep()
    # A starving job has a node held for it until `hold_for` is over.
    s.cycle(*(report for at in range(9) for report in s.report(f"unit{at}", "main", "running")))
    s.cycle(submit("large", {**ARRAY, "queue": "root.ml", "stages": [{"resources": {"cpu": 1, "gpu": 4}}]}))
    s.cycle(after=49 * HOUR)
    s.keep()
    s.cycle(after=25 * HOUR)
    s.keep()
    s.cycle(Kill(job="large", operator=True))
    # Tasks are stopped for a job of higher priority.
    urgent = {**ARRAY, "queue": "root.ml", "priority": 5, "stages": [{"resources": {"gpu": 4}}]}
    s.cycle(submit("urgent", urgent, operator=True))
    s.keep()
    s.cycle(*(report for at in range(2, 9) for report in s.report(f"unit{at}", "main", "stopped")))
    s.keep()
    # Two nodes are held for a gang, and one of them goes.
    s.cycle(*(Kill(job=f"unit{at}", operator=True) for at in range(2, 8)))
    s.cycle(node("c3", resources={"cpu": 8, "gpu": 4}), *s.report("urgent", "main", "running"))
    s.cycle(submit("wide", {**ARRAY, "queue": "root.ml", "stages": [{"count": 2, "resources": {"gpu": 4}}]}))
    s.cycle(after=49 * HOUR)
    s.cycle()
    s.keep()
    s.cycle(MoveNode(name="c3", action="drain", operator=True))
    s.keep()
    # A job starts from a hold.
    s.cycle(after=49 * HOUR)
    s.cycle(after=HOUR)
    s.cycle(*s.report("urgent", "main", "succeeded"))
    s.keep()
    # Two agents disconnect, and one of them is back.
    s.cycle(DisconnectNodes(names=("c2", "c3"), operator=True))
    s.keep()
    s.cycle(node("c3", resources={"cpu": 8, "gpu": 4}))
    s.keep()
    recall_a_loan(s)
    # A stage with conditions on labels and with preferences.
    s.cycle(submit("picky", PICKY))
    s.keep()
    follow(s)
    # A node runs a task that this journal never gave.
    strange = Report(node="c3", job="lost", stage="main", indices=(2, 4), attempt=3, state="running", number=9_000)
    s.cycle(strange, alarm=True)
    s.keep()
    # The data were set back.
    s.cycle(BeginEra(era=2, reached=s.partition.now, operator=True))
    s.keep()
    s.cycle(RemoveManager(name="rm", operator=True))
    s.keep()
    s.cycle(RemovePartition(operator=True))
    s.keep()


def follow(s: Script) -> None:
    """Tasks follow tasks of another job, a job follows a failure, and a job that waits is changed."""
    array = {**ARRAY, "queue": "root.ci", "stages": [{"name": "a", "array": 3, "resources": {"cpu": "100m"}}]}
    s.cycle(node("c4", resources={"cpu": 4}))
    s.cycle(submit("first", array), submit("second", {**array, "after": ["first:each"], "singleton": True}))
    s.cycle(submit("rescue", {**array, "after": ["first:failed"]}))
    s.cycle(*s.report("first", "a", "running"))
    s.cycle(*s.report("first", "a", "succeeded", 1))
    s.cycle(*s.report("first", "a", "failed", 1))
    s.keep()
    changes = {"queue": "root.ml", "resources": (("cpu", 300),), "throttle": 2, "labels": (("team", "nlp"),)}
    s.cycle(UpdateJob(job="rescue", user="ann", operator=True, **changes))
    s.keep()
    s.cycle(*(Kill(job=name, operator=True) for name in ("first", "second", "rescue")))
    s.cycle(*s.report("first", "a", "stopped"), *s.report("second", "a", "stopped"))
    specs = tuple(parse_job({**array, "name": name, "after": after}) for name, after in (("x", []), ("y", ["x:any"])))
    s.cycle(SubmitPipeline(name="nightly", specs=specs, user="ann", operator=True))
    s.keep()
    s.cycle(*(Kill(job=job.id, operator=True) for job in s.partition.jobs.values() if job.spec.name in ("x", "y")))
    # A node is drained from a time on, for a time.
    s.cycle(MoveNode(name="c4", action="drain", reason="firmware", delay=HOUR, lasts=HOUR, operator=True))
    s.keep()


def plan_a_start(s: Script) -> None:
    """A job waits for one whose run time was learned."""
    known = {**RING, "name": "known", "stages": [{"count": 2, "resources": {"cpu": 4}, "estimate": "1h"}]}
    s.cycle(submit("known", known))
    s.cycle(*s.report("known", "main", "running"))
    s.cycle(*s.report("known", "main", "succeeded", exit_code=0), submit("again", known), after=HOUR // 2)
    s.cycle(*s.report("again", "main", "running"), submit("planned", RING))
    s.keep()
    s.cycle(Kill(job="planned", operator=True), Kill(job="again", operator=True))
    s.cycle(*s.report("again", "main", "stopped"))


def recall_a_loan(s: Script) -> None:
    """A loan is renewed while an owner waits, so that nodes are set aside for the owner."""
    loan = {"count": 30, "min": 1, "resources": {"cpu": 100}}
    s.cycle(node("r0", resources={"cpu": 1_000}), node("r1", resources={"cpu": 1_000}))
    s.cycle(submit("loans", {**ARRAY, "queue": "root.ci", "stages": [loan]}))
    s.cycle(*s.report("loans", "main", "running"))
    s.cycle(submit("owner", {**ARRAY, "queue": "root.ml", "stages": [{"resources": {"cpu": 500}}]}))
    s.cycle(*s.report("loans", "main", "succeeded", most=1), after=2 * SECOND)
    assert any(hold.recalled for hold in s.partition.holds.values())
    s.keep()
    s.cycle(Kill(job="owner", operator=True), Kill(job="loans", operator=True))
    s.cycle(*s.report("loans", "main", "stopped"))
    s.cycle(RemoveNode(name="r0", operator=True), RemoveNode(name="r1", operator=True))


def pair_up(s: Script) -> None:
    """All stages of a job wait together, start together, are taken back together, and start once more."""
    s.cycle(MoveNode(name="c1", action="drain", operator=True))
    s.cycle(submit("pair", PAIR), submit("other", PAIR))
    s.cycle(BringToFront(job="pair", stage="b", operator=True), Scale(job="other", stage="a", count=2, operator=True))
    s.keep()
    s.cycle(Kill(job="other", operator=True), MoveNode(name="c1", action="enable", operator=True))
    s.cycle(*s.report("pair", "b", "running"))
    s.cycle(*s.report("pair", "a", "refused"))
    s.keep()
    s.cycle(*s.report("pair", "b", "stopped"), after=HOUR)
    s.cycle(*s.report("pair", "a", "running"), *s.report("pair", "b", "running"))
    s.keep()
    s.cycle(Kill(job="pair", operator=True))
    s.cycle(*s.report("pair", "a", "stopped"), *s.report("pair", "b", "stopped"))


def manage(s: Script) -> None:
    """A resource manager with jobs of its own."""

    def update(**parts: Any) -> UpdateManager:
        return UpdateManager(name="rm", operator=True, **parts)

    cpu = {"cpu": 1}
    s.cycle(RegisterManager(name="rm", operator=True))
    s.cycle(
        update(
            nodes=({"name": "m0", "resources": {"cpu": 2}},),
            jobs=({"job": "app", "queue": "root.ml", "user": "ann", "labels": {"a": "b"}},),
            recover=({"job": "app", "ask": "x", "node": "m0", "index": 2, "resources": cpu},),
        )
    )
    s.cycle(update(asks=({"job": "app", "ask": "x", "count": 3, "resources": cpu},)))
    s.cycle(update(releases=({"job": "app", "ask": "x", "index": 2},)))
    s.keep()
    s.cycle(update(asks=({"job": "app", "ask": "y", "count": 6, "resources": cpu},)))
    s.cycle(update(asks=({"job": "app", "ask": "y", "withdraw": True},)))


def write_records(path: Path, payloads: Iterable[bytes]) -> None:
    path.write_bytes(b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads))


def read_records(path: Path) -> list[bytes]:
    content, payloads, at = path.read_bytes(), [], 0
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        payloads.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return payloads


def goldens() -> list[Path]:
    """All golden journals, the oldest first."""
    return sorted((path for path in HERE.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def main() -> None:
    script = Script()
    play(script)
    records = [record.payload for record in script.journal.read(stream_of(PARTITION))]
    seen = {type(change) for payload in records for change in decode(payload, "golden")[1]}
    missing = sorted(change.__name__ for change in set(ALL_CHANGES) - seen)
    assert not missing, f"play() must cause {', '.join(missing)} as well"
    config = parse_config({"partitions": {PARTITION: FIRST}})[PARTITION]
    configured = ClusterConfigured(3, ((PARTITION, config),))
    folder = HERE / str(len(goldens()) + 1)
    folder.mkdir()
    write_records(folder / f"{CLUSTER_STREAM}.records", [encode_cluster(configured)])
    write_records(folder / "partition.records", records)
    write_records(folder / "removed.records", [encode_remains(REMAINS)])
    for seq, payload in script.dumps.items():
        (folder / f"{seq}.dump").write_bytes(payload)
    print(f"{folder.relative_to(HERE.parent.parent)}: {len(records)} records, {len(seen)} kinds of changes")


if __name__ == "__main__":
    main()
