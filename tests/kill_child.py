"""A writer that works until it is killed: random commands from a seed, announced on standard output.

    python tests/kill_child.py PATH SEED EVERY

Each line is one write to the pipe, so that a kill leaves no partial line:

    open EPOCH SEQ DIGEST       recovered
    writing SEQ DIGEST          about to commit this record; the state will have this digest
    written SEQ                 committed
    answer SEQ NOW WHAT JOB     a command was answered, when SEQ was the last record
    snapshot PID                a snapshot process was started
"""

from __future__ import annotations

import os
import sys
from hashlib import blake2b
from random import Random

from fairlead.core.commands import (
    Accepted,
    AddNode,
    Answer,
    BringToFront,
    CancelAsk,
    Command,
    Configure,
    Kill,
    MarkReady,
    MoveNode,
    RegisterManager,
    RemoveNode,
    Report,
    ResetLane,
    Scale,
    SetPriority,
    Submit,
    UpdateManager,
    UpdateNode,
)
from fairlead.core.config import parse_config
from fairlead.core.cycle import Cycle
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.dump import dump
from fairlead.core.effects import outstanding_effects
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.journal import Journal, SqliteJournal
from fairlead.journal.snapshot import Snapshots
from fairlead.sim.fleet import Fleet
from fairlead.writer.writer import Writer

PARTITION = "default"
KEPT = 60 * SECOND
"""How long an ended job is kept."""
CONFIG = {
    "keep_ended": "60s",
    "keep_keys": "60s",
    "queues": {"root": {"a": {"share": 60, "limit": {"cpu": 12}}, "b": {"order": "fair"}, "c": {"max_jobs": 4}}},
    "pools": {"spare": {"node": {"cpu": 4}, "max": 3}},
}


def digest(state: Partition) -> str:
    return blake2b(dump(state), digest_size=16).hexdigest()


class Driver:
    """Drives one writer with random commands; a virtual fleet answers as the agents."""

    def __init__(self, journal: Journal, seed: object) -> None:
        self.writer = Writer(journal, PARTITION)
        self.state = self.writer.partition
        self.dice = Random(f"{seed} {self.writer.epoch}")
        self.fleet = Fleet()
        self.now = self.state.now
        self.made = 0
        self.fleet.deliver(outstanding_effects(self.state), self.now)

    def begin(self) -> None:
        config = parse_config({"partitions": {PARTITION: CONFIG}})[PARTITION]
        nodes = [AddNode(name=f"n{at}", spec=_node(4, at % 2), operator=True) for at in range(4)]
        register = [RegisterManager(name="rm", operator=True)]
        fresh = [Configure(config=config, version=1, operator=True), *nodes, *register] if not self.writer.seq else []
        self.cycle([MarkReady(operator=True), *fresh])

    def cycle(self, commands: list[Command] | None = None) -> list[tuple[Command, Answer]]:
        """Run one turn. Returns its commands with their answers."""
        asked = self.commands() if commands is None else commands
        reports = self.fleet.reports(self.now)
        done: Cycle = self.writer.cycle([*reports, *asked], self.now)
        self.fleet.deliver(done.effects, self.now)
        self.now += self.dice.randrange(1, 4 * SECOND)
        return list(zip(asked, done.answers[len(reports) :], strict=True))

    def commands(self) -> list[Command]:
        return [self._command() for _ in range(self.dice.choice([0, 1, 1, 2, 5]))]

    def _command(self) -> Command:
        dice = self.dice
        job = dice.choice(list(self.state.jobs) or ["missing"])
        known = self.state.jobs.get(job)
        stage = dice.choice([each.name for each in known.stages] if known and known.stages else ["s"])
        node = f"n{dice.randrange(6)}"
        everything: list[tuple[int, Command]] = [
            (8, self._submit()),
            (3, Kill(job=job, operator=True)),
            (3, Scale(job=job, stage=stage, count=dice.randrange(9), operator=True)),
            (1, SetPriority(job=job, priority=dice.randrange(-5, 5), operator=True)),
            (1, BringToFront(job=job, stage=stage, operator=True)),
            (1, CancelAsk(job=job, stage=stage, operator=True)),
            (1, ResetLane(queue="root.a", job=job, operator=True)),
            (2, AddNode(name=node, spec=_node(dice.randrange(1, 6), dice.randrange(3)), operator=True)),
            (1, UpdateNode(name=node, spec=_node(dice.randrange(1, 6), dice.randrange(3)), operator=True)),
            (2, MoveNode(name=node, action=dice.choice(["drain", "disable", "enable", "lose"]), operator=True)),
            (1, RemoveNode(name=node, operator=True)),
            (3, self._failure()),
            (2, self._update()),
        ]
        return dice.choices([each for _, each in everything], [weight for weight, _ in everything])[0]

    def _name(self) -> str:
        self.made += 1
        return f"j{self.writer.epoch}-{self.made}"

    def _submit(self) -> Submit:
        dice = self.dice
        name = self._name()
        stages = [
            {
                "name": part,
                "count": dice.choice([1, 2, 3, 8]),
                "min": dice.choice([None, 1]),
                "resources": dice.choice([{"cpu": 1}, {"cpu": 2}, {"gpu": 1}, {"gpu": 0.5}, {}]),
                "tries": dice.choice([1, 3]),
                "on_loss": dice.choice(["replace", "restart", "fail"]),
            }
            for part in ("s", "t")[: dice.choice([1, 1, 2])]
        ]
        for part in ("s", "t"):
            self.fleet.durations[name, part] = dice.randrange(1, 30 * SECOND)
        after = [job for job, each in self.state.jobs.items() if not each.over][: dice.choice([0, 0, 0, 1])]
        queue = dice.choice(["root.a", "root.b", "root.c"])
        spec = parse_job({"name": "job", "user": "ann", "queue": queue, "stages": stages, "after": after})
        return Submit(spec=spec, id=name, user="ann", key=dice.choice(["", f"key of {name}"]))

    def _failure(self) -> Command:
        """Report ends of some live tasks of our own agents, which the fleet does not know of."""
        live = [allocation for allocation in self.state.allocations.values() if not allocation.stage.job.spec.manager]
        if not live:
            return MarkReady(operator=True)
        each = self.dice.choice(live)
        name = self.state.nodes.name[self.state.nodes.rows[each.node]]
        return Report(
            node=name,
            job=each.stage.job.id,
            stage=each.stage.name,
            indices=each.indices,
            attempt=each.attempt,
            state=self.dice.choice(["failed", "refused", "lost", "succeeded"]),
            exit_code=self.dice.choice([None, 1]),
            operator=True,
        )

    def _update(self) -> UpdateManager:
        dice = self.dice
        own = [name for name, job in self.state.jobs.items() if job.spec.manager and not job.over]
        job = dice.choice(own) if own and dice.random() < 0.8 else self._name()
        parts: list[dict[str, object]] = [
            {"jobs": [{"job": job, "queue": "root.b", "user": "ann"}]},
            {"jobs": [{"job": job, "remove": True}]},
            {"asks": [{"job": job, "ask": "x", "count": dice.randrange(3, 6), "resources": {"cpu": 1}}]},
            {"asks": [{"job": job, "ask": "x", "withdraw": True}]},
            {
                "nodes": [{"name": "m0", "resources": {"cpu": 3}}],
                "recover": [{"job": job, "ask": "x", "node": "m0", "index": 2, "resources": {"cpu": 1}}],
            },
        ]
        return UpdateManager(name="rm", operator=True, **dice.choice(parts))  # type: ignore[arg-type]


def _node(cpu: int, gpu: int):  # type: ignore[no-untyped-def]
    return parse_node({"name": "n", "resources": {"cpu": cpu, "gpu": gpu}})[1]


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Announcing(SqliteJournal):
    """A journal that prints each commit before and after it."""

    state: Partition

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        say("writing", seq, digest(self.state))
        super().append(stream, epoch, seq, payload)
        say("written", seq)


def main(path: str, seed: str, every: str) -> None:
    journal = Announcing(path)
    driver = Driver(journal, seed)
    journal.state = driver.state
    snapshots = Snapshots(path, PARTITION, every=int(every))
    say("open", driver.writer.epoch, driver.writer.seq, digest(driver.state))
    driver.begin()
    while True:
        now = driver.now
        for command, answer in driver.cycle():
            if isinstance(answer, Accepted):
                job = answer.job or getattr(command, "job", "-")
                say("answer", driver.writer.seq, now, type(command).__name__, job)
        running = snapshots.pid
        snapshots.poll(driver.writer.seq)
        if snapshots.failure:
            say("failure", snapshots.failure.replace("\n", " "))
            snapshots.failure = ""
        if snapshots.pid is not None and snapshots.pid != running:
            say("snapshot", snapshots.pid)


if __name__ == "__main__":
    main(*sys.argv[1:])
