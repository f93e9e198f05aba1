"""A burst of requests costs one reading of the state, one transaction and one message a node.

Here the writer is driven in a World, whose nodes can refuse. test_live.py tests that the live loop makes one turn of a
burst, serves a single request at once and sleeps while nothing arrives; the published rows are in tests/cases.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fairlead.core import cycle
from fairlead.core.effects import ForNode
from fairlead.core.match.place import Starter
from fairlead.journal.in_memory import MemoryJournal
from fairlead.testing import World


class Counted:
    """A world that counts readings of its state, writes to its journal and messages to nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpu: int = 5, gpu: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.w = World()
        for at in range(20):
            self.w.node(f"n{at}", cpu=cpu, **({"gpu": gpu} if at % 2 and gpu else {}))
        self.w.cycle()
        self._count(monkeypatch, cycle, "run")
        self._count(monkeypatch, MemoryJournal, "append")
        self._count(monkeypatch, Starter, "start")
        self.w.effects()

    def _count(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
        original = getattr(place, name)

        def counted(*given: Any, **named: Any) -> Any:
            self.counts[name] += 1
            return original(*given, **named)

        monkeypatch.setattr(place, name, counted)

    def submit(self, name: str, count: int = 1, **resources: Any) -> str:
        stage = {"name": "w", "count": count, "resources": {"cpu": 1, **resources}}
        return self.w.submit(name=name, stages=[stage])

    def messages(self) -> list[ForNode]:
        return [effect for effect in self.w.effects() if isinstance(effect, ForNode)]

    def tasks(self, jobs: dict[str, int]) -> dict[tuple[str, int], tuple[str, int, str | None]]:
        """Job and index → state, attempt and node."""
        return {
            (job, index): (view.state, view.attempt, view.node)
            for job, count in jobs.items()
            for index in range(count)
            for view in [self.w.task(job, "w", index)]
        }


def test_100_requests_on_20_nodes_are_one_reading_one_transaction_and_at_most_20_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = Counted(monkeypatch)
    jobs = [c.submit(f"j{at}") for at in range(100)]
    c.w.cycle()
    assert (c.counts["run"], c.counts["append"]) == (1, 1)
    messages = c.messages()
    assert len(messages) == len({message.node for message in messages}) == 20
    placed = Counter(node for job in jobs for node in c.w.placements(job).values())
    assert placed == {f"n{at}": 5 for at in range(20)}


def test_requests_of_cpu_and_gpu_mixed_share_the_transaction_and_cpu_spares_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = Counted(monkeypatch, gpu=2)
    wanted = [{}, {"gpu": 1}, {}, {"gpu": "0.5"}, {}]
    jobs = [c.submit(f"j{at}", **wanted[at % 5]) for at in range(60)]
    c.w.cycle()
    assert (c.counts["run"], c.counts["append"]) == (1, 1)
    messages = c.messages()
    assert len({message.node for message in messages}) == len(messages) <= 20
    with_gpu = {f"n{at}" for at in range(1, 20, 2)}
    for at, job in enumerate(jobs):
        assert (c.w.placements(job)["w", 0] in with_gpu) == bool(wanted[at % 5])
    devices = Counter(
        (node, device)
        for at, job in enumerate(jobs)
        for node in c.w.placements(job).values()
        for device in c.w.task(job, "w", 0).devices
        for _ in range({1: 2, "0.5": 1}[wanted[at % 5]["gpu"]])  # type: ignore[index]
    )
    assert max(devices.values()) == 2 and sum(devices.values()) == 12 * 2 + 12


def test_when_3_of_20_nodes_refuse_only_their_tasks_return_and_gangs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    c = Counted(monkeypatch)
    refusing = {"n3", "n7", "n11"}
    for node in refusing:
        c.w.refuse_launches(node)
    sizes = {c.submit(f"j{at}", count): count for at, count in enumerate([1, 3, 1, 2, 1, 4, 1, 1, 5, 1] * 5)}
    c.w.cycle()
    assert (c.counts["run"], c.counts["append"]) == (1, 1)
    before = c.tasks(sizes)
    assert len(before) == 100 and {state for state, _, _ in before.values()} == {"assigned"}
    hit = {job for (job, _), (_, _, node) in before.items() if node in refusing}
    assert 3 < len(hit) < len(sizes) and any(sizes[job] > 1 for job in hit) and any(sizes[job] == 1 for job in hit)
    c.messages()
    c.w.cycle()  # the answers of the agents
    assert (c.counts["run"], c.counts["append"]) == (2, 2)
    stopped = {(stop.job, message.node) for message in c.messages() for stop in message.stops}
    assert {job for job, _ in stopped} <= hit  # only members of those gangs on other nodes
    after = c.tasks(sizes)
    for (job, index), (state, attempt, node) in after.items():
        if job not in hit:
            assert (state, attempt, node) == ("running", 1, before[job, index][2])
        elif before[job, index][2] in refusing:
            assert state == "pending"
        else:
            assert state == "stopping" and sizes[job] > 1
    c.w.cycle()
    after = c.tasks(sizes)
    for job in hit:
        assert len({after[job, index][0] for index in range(sizes[job])}) == 1  # whole: all wait, or all run again


def test_a_single_request_is_one_transaction_and_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    c = Counted(monkeypatch)
    job = c.submit("alone")
    c.w.cycle()
    assert (c.counts["run"], c.counts["append"], c.counts["start"]) == (1, 1, 1)
    assert [message.node for message in c.messages()] == [*c.w.placements(job).values()] == ["n0"]


def test_an_empty_inbox_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while jobs wait: nothing is written or sent, and no lane is read."""
    c = Counted(monkeypatch)
    for at in range(300):
        c.submit(f"j{at}")
    c.w.advance(0)
    c.counts.clear()
    c.messages()
    before = c.w.dump()
    for _ in range(10):
        c.w.cycle()
    c.w.advance(30)  # nothing is due either
    assert c.counts == {"run": 10}
    assert (c.messages(), c.w.dump()) == ([], before)
