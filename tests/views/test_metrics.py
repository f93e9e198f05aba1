"""Small worlds and the exact figures after them, read from what a scrape would get."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.core.commands import AddNode, Command, Configure, Kill, MarkReady, Submit
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.history.promised_starts import PromisedStarts
from fairlead.history.store import History
from fairlead.journal import MemoryJournal
from fairlead.pools.pool_service import Figures
from fairlead.testing import World
from fairlead.views.metrics.lane_metrics import LANES
from fairlead.views.metrics.metrics import Metrics
from fairlead.views.metrics.scraped import InboxFigures
from fairlead.writer.writer import Stopped, Writer

ROOT = Path(__file__).parent.parent.parent


class Watched(World):
    """A world with metrics, and ways to read them."""

    def __init__(self, config: Any = None, **rest: Any) -> None:
        self.metrics = Metrics()
        super().__init__(config, observers=[self.metrics], **rest)
        self.start = figures(self.metrics)

    def figures(self, name: str) -> dict[str, float]:
        """Return the series of a metric by their labels except the partition, as growth since the world began."""
        now = figures(self.metrics)[name]
        return {labels: value - self.start.get(name, {}).get(labels, 0) for labels, value in now.items()}

    def figure(self, name: str) -> float:
        [value] = self.figures(name).values()
        return value

    def tasks(self, count: int, **rest: Any) -> str:
        stage = {"name": "w", "count": count, "resources": {"cpu": 1}}
        job = {key: rest.pop(key) for key in ("queue", "user", "key", "after", "name", "partition") if key in rest}
        return self.submit(stages=[{**stage, **rest}], **job)


def figures(metrics: Metrics, partition: str = "default", at: int = 0) -> dict[str, dict[str, float]]:
    """Name without prefix → the values of the other labels → value, at a time."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(metrics.text(at)):
        for sample in family.samples:
            if sample.labels["partition"] == partition:
                labels = ", ".join(value for key, value in sorted(sample.labels.items()) if key != "partition")
                found.setdefault(sample.name.removeprefix("fairlead_"), {})[labels] = sample.value
    return found


# -- lanes -------------------------------------------------------------------------------------------------------


def test_asks_and_pending_tasks_by_lane() -> None:
    w = Watched()
    w.queue("root.a")
    w.queue("root.b")
    w.node("n1", cpu=2)
    first = w.tasks(5, queue="root.a", min=1)
    w.tasks(3, queue="root.a")
    w.tasks(4, queue="root.b", resources={"cpu": 1, "memory": "1Gi"})
    w.tasks(7, queue="root.b", after=[first])
    w.cycle()
    assert w.figures("lane_asks") == {"root.a, cpu=1": 2, "root.b, cpu=1": 0, "root.b, cpu=1 memory=1Gi": 1}
    assert w.figures("lane_pending_tasks") == {"root.a, cpu=1": 6, "root.b, cpu=1": 7, "root.b, cpu=1 memory=1Gi": 4}
    w.restart()
    assert w.figures("lane_pending_tasks") == {"root.a, cpu=1": 6, "root.b, cpu=1": 7, "root.b, cpu=1 memory=1Gi": 4}
    w.node("n2", cpu=100, memory="8Gi")
    w.cycle()
    assert w.figures("lane_asks") == {"root.b, cpu=1": 0}
    assert w.figures("lane_pending_tasks") == {"root.b, cpu=1": 7}
    w.kill(first)
    w.cycle()
    assert "lane_pending_tasks" not in figures(w.metrics)


def test_pending_tasks_follow_scaling_and_forgetting() -> None:
    w = Watched({"keep_ended": 0})
    job = w.tasks(5)
    w.cycle()
    for count in (9, 2):
        w.scale(job, "w", count)
        w.cycle()
        assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": count}
    short = w.tasks(4)
    w.scale(job, "w", 3)
    w.scale(job, "w", 6)
    w.kill(short)
    w.cycle()  # it came, ended and was forgotten in one cycle
    assert short not in w.partition().jobs
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 6}


def test_a_gang_that_comes_back_after_a_scale_down() -> None:
    w = Watched()
    w.nodes(3, cpu=1)
    w.refuse_launches("n0")
    job = w.tasks(3)
    w.cycle()
    assert w.placements(job)["w", 0] == "n0"
    w.scale(job, "w", 2)
    w.cycle()  # the first is refused, the others are told to stop, and the last of them is not wanted any more
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 1}
    w.drain("n1")
    w.cycle()
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 2}


def test_a_job_that_starts_whole_is_one_ask_in_the_lane_of_its_shapes() -> None:
    w = Watched()
    w.nodes(2, cpu=2)
    stages = [{"name": "a", "count": 3, "min": 1, "resources": {"cpu": 1}}, {"name": "b", "resources": {"cpu": 2}}]
    stages[1]["on_loss"] = "replace"
    jobs = [w.submit(name=name, gang="job", stages=stages) for name in ("one", "two")]
    w.cycle()
    one, two, both = (f"root.default, {shape}" for shape in ("cpu=1", "cpu=2", "cpu=1 + cpu=2"))
    assert w.figures("lane_asks") == {one: 1, two: 0, both: 1}
    assert w.figures("lane_pending_tasks") == {one: 4, two: 1, both: 0}
    w.cycle()
    w.fail_node(w.placements(jobs[0])["b", 0])
    w.cycle()
    assert w.figures("lane_asks") == {one: 1, two: 1, both: 1}
    w.advance(300)  # it stays short, and is taken back whole
    assert w.figures("lane_asks") == {one: 0, two: 0, both: 2}
    assert w.figures("lane_pending_tasks") == {one: 6, two: 2, both: 0}
    w.scale(jobs[0], "a", 0)
    w.scale(jobs[0], "b", 0)
    w.cancel(jobs[1], "a")
    w.cycle()
    assert "lane_pending_tasks" not in figures(w.metrics)
    # Inserted: two whole ones, a rest, a lost one, the whole again. Cancelled: all but the first, which began.
    assert w.figures("upserts_total") == {"inserted": 5, "replaced": 0, "ignored": 0}
    assert w.figures("asks_ended_total") == {"completed": 1, "cancelled": 4}
    assert w.figure("head_of_lane_latency_seconds_count") == 1


def test_lanes_of_a_manager_are_told_apart_from_ours() -> None:
    w = Watched()
    w.rm("k8s").register()
    ask = {"job": "theirs", "ask": "w", "count": 2, "min": 1, "resources": {"cpu": 1}}
    w.rm("k8s").update(jobs=[{"job": "theirs"}])
    w.cycle()
    w.rm("k8s").update(asks=[ask])
    w.tasks(3)
    w.cycle()
    assert len(w.partition().lanes) == 2
    assert w.figures("lane_asks") == {"root.default, cpu=1": 1, "root.default, cpu=1; nodes of k8s": 1}
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 3, "root.default, cpu=1; nodes of k8s": 2}
    w.rm("k8s").update(asks=[{"job": "theirs", "ask": "w", "withdraw": True}])
    w.cycle()
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 3}
    w.rm("k8s").update(asks=[ask])
    w.cycle()
    assert w.figures("lane_asks") == {"root.default, cpu=1": 1, "root.default, cpu=1; nodes of k8s": 1}
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 3, "root.default, cpu=1; nodes of k8s": 2}


def test_only_the_lanes_where_most_wait_are_shown() -> None:
    w = Watched()
    for cpu in range(1, LANES + 4):
        w.tasks(cpu, resources={"cpu": cpu})
    w.cycle()
    shown = w.figures("lane_pending_tasks")
    assert len(shown) == LANES + 1
    assert shown["other, other"] == 1 + 2 + 3 and shown["root.default, cpu=4"] == 4
    assert w.figures("lane_asks")["other, other"] == 3


class Spied(dict[Any, Any]):
    """Lanes that record which ones were asked for. They cannot be iterated over."""

    def __init__(self, lanes: Any) -> None:
        super().__init__(lanes)
        self.asked: list[str] = []

    def get(self, key: Any, default: Any = None) -> Any:
        self.asked.append(key[1].text)
        return super().get(key, default)

    __iter__ = items = values = keys = None  # type: ignore[assignment]


def test_a_cycle_does_not_look_at_all_lanes() -> None:
    metrics = Metrics()
    writer = writer_with(metrics, MemoryJournal())
    writer.cycle([submission(20), submission(20, cpu=2)], 2)
    writer._observers = []
    decided = writer.cycle([submission(5, cpu=2)], 3)
    spied = writer.partition.lanes = Spied(writer.partition.lanes)
    metrics.cycle(decided, {})
    assert spied.asked == ["cpu=2"]
    assert figures(metrics)["lane_pending_tasks"] == {"root.default, cpu=1": 20, "root.default, cpu=2": 25}


# -- asks ------------------------------------------------------------------------------------------------


def test_upserts() -> None:
    w = Watched()
    w.rm("k8s").register()
    w.rm("k8s").update(jobs=[{"job": "theirs"}])
    ask = {"job": "theirs", "ask": "w", "count": 2, "min": 1, "resources": {"cpu": 1}}
    w.rm("k8s").update(asks=[ask])
    job = w.tasks(2, key="k", user="ann")
    w.cycle()
    assert w.figures("upserts_total") == {"inserted": 2, "replaced": 0, "ignored": 0}
    w.scale(job, "w", 2)
    w.rm("k8s").update(asks=[ask])
    assert w.tasks(2, key="k", user="ann") == job
    w.cycle()
    assert w.figures("upserts_total") == {"inserted": 2, "replaced": 0, "ignored": 3}
    w.scale(job, "w", 3)
    w.cycle()
    w.prioritise(job, "w")
    w.cycle()
    assert w.figures("upserts_total") == {"inserted": 2, "replaced": 2, "ignored": 3}
    w.scale(job, "w", 1)  # keeps its place
    w.cycle()
    assert w.figures("upserts_total") == {"inserted": 2, "replaced": 2, "ignored": 3}


def test_a_refused_command_counts_no_upsert() -> None:
    w = Watched()
    w.tasks(2, queue="root.none")
    w.cycle()
    assert w.figures("upserts_total") == {"inserted": 0, "replaced": 0, "ignored": 0}


def test_completed_and_cancelled_asks() -> None:
    w = Watched()
    w.node("n1", cpu=4)
    placed = w.tasks(2)
    part = w.tasks(3, min=1)
    w.cycle()
    assert w.figures("asks_ended_total") == {"completed": 1, "cancelled": 0}  # two of three are placed
    w.finish(placed)
    w.cycle()
    assert w.figures("asks_ended_total") == {"completed": 2, "cancelled": 0}
    killed, cut, withdrawn = w.tasks(9), w.tasks(9), w.tasks(9)
    w.cycle()
    w.kill(killed)
    w.scale(cut, "w", 8)  # eight still wait
    w.cycle()
    assert w.figures("asks_ended_total") == {"completed": 2, "cancelled": 1}
    w.scale(cut, "w", 0)
    w.cancel(withdrawn, "w")
    w.cycle()
    assert w.figures("asks_ended_total") == {"completed": 2, "cancelled": 3}
    assert w.job(part).state == "running"


def test_an_ask_that_becomes_another_kind_is_cancelled() -> None:
    w = Watched({"replace_within": "10s"})
    w.nodes(2, cpu=1)
    w.tasks(2, on_loss="replace")
    w.cycle()
    w.cycle()
    w.fail_node("n1")
    w.cycle()
    assert w.figures("lane_asks") == {"root.default, cpu=1": 1}
    assert w.figures("asks_ended_total") == {"completed": 1, "cancelled": 0}
    w.advance(15)
    assert w.figures("lane_asks") == {"root.default, cpu=1": 1}
    assert w.figures("asks_ended_total") == {"completed": 1, "cancelled": 1}


def test_asks_to_the_tail() -> None:
    w = Watched()
    w.node("n1", cpu=2)
    w.tasks(1)
    w.refuse_launches("n1")
    w.cycle()
    w.cycle()
    # What a refused launch brings back has an ask again, and it is the last.
    assert w.figure("asks_to_tail_total") == 1
    assert w.figures("upserts_total") == {"inserted": 2, "replaced": 0, "ignored": 0}
    stuck = w.tasks(9, resources={"cpu": 2})
    w.cycle()
    w.reset_lane("root.default", stuck)
    w.cycle()
    assert w.figure("asks_to_tail_total") == 2
    assert w.figures("upserts_total") == {"inserted": 3, "replaced": 0, "ignored": 0}


def test_many_single_tasks() -> None:
    w = Watched()
    jobs = [w.tasks(1) for _ in range(9)]
    w.cycle()
    w.advance(3)
    w.nodes(3, cpu=2)
    w.cycle()
    assert sum(1 for job in jobs if w.placements(job)) == 6
    assert w.figure("tasks_placed_total") == 6
    assert w.figures("asks_ended_total") == {"completed": 6, "cancelled": 0}
    assert w.figure("head_of_lane_latency_seconds_sum") == 18
    assert w.figures("lane_asks") == w.figures("lane_pending_tasks") == {"root.default, cpu=1": 3}


def test_head_of_lane_latency() -> None:
    w = Watched()
    w.node("n1", cpu=1)
    first = w.tasks(1)
    second = w.tasks(1)
    w.cycle()
    assert w.figure("head_of_lane_latency_seconds_sum") == 0
    assert w.figure("head_of_lane_latency_seconds_count") == 1
    w.advance(90)
    w.finish(first)
    w.cycle()
    assert w.placements(second)
    assert w.figure("head_of_lane_latency_seconds_sum") == 90
    buckets = w.figures("head_of_lane_latency_seconds_bucket")
    assert (buckets["0.01"], buckets["60.0"], buckets["300.0"], buckets["+Inf"]) == (1, 1, 2, 2)


# -- tasks -------------------------------------------------------------------------------------------------------


def test_launch_outcomes() -> None:
    w = Watched()
    w.nodes(4, cpu=2)
    w.hold_acks("n1")
    w.refuse_launches("n2")
    w.hold_acks("n3")
    w.tasks(8, min=1)
    w.cycle()
    assert w.figure("tasks_placed_total") == 8
    w.fail_node("n3")
    w.cycle()
    assert w.figures("launches_total") == {"acknowledged": 2, "refused": 2, "silent": 0, "lost": 2}
    w.drain("n0")
    w.drain("n2")
    w.cycle()
    w.advance(61)
    assert w.figures("launches_total") == {"acknowledged": 2, "refused": 2, "silent": 2, "lost": 2}


def test_the_last_silent_launch_counts_like_the_others() -> None:
    w = Watched({"max_launch_tries": 2, "launch_timeout": "4s"})
    w.node("n1", cpu=2)
    w.hold_acks("n1")
    job = w.tasks(2)
    w.advance(10)
    assert w.job(job).state == "failed"
    assert w.figures("launches_total") == {"acknowledged": 0, "refused": 0, "silent": 4, "lost": 0}
    assert w.figures("attempts_ended_total")["failed"] == 2


def test_attempts_by_how_they_ended() -> None:
    w = Watched()
    w.nodes(3, cpu=2)
    good, bad, ugly = w.tasks(2), w.tasks(2), w.tasks(2)
    w.cycle()
    w.cycle()
    w.finish(good)
    w.finish(bad, index=0, stage="w", exit_code=1)  # takes the other with it
    w.fail_node(w.placements(ugly)["w", 0])
    w.cycle()
    w.cycle()
    expected = {"succeeded": 2, "failed": 1, "lost": 2, "preempted": 0, "killed": 1}
    assert w.figures("attempts_ended_total") == expected


def test_a_gang_taken_back_is_preempted() -> None:
    w = Watched()
    w.nodes(2, cpu=1)
    w.hold_acks("n1")
    w.tasks(2)
    w.advance(60)
    assert w.figures("launches_total") == {"acknowledged": 1, "refused": 0, "silent": 1, "lost": 0}
    assert w.figures("attempts_ended_total")["preempted"] == 1


def test_stale_reports_and_unknown_attempts() -> None:
    w = Watched()
    w.node("n1", cpu=2)
    job = w.tasks(1)
    w.cycle()
    w.report(job, "w", 0, 0, "succeeded")
    w.report(job, "w", 0, 0, "failed")
    w.report(job, "w", 0, 7, "running")
    w.cycle()
    assert w.figure("stale_reports_total") == 2
    assert w.figure("unknown_attempts_total") == 1


def test_reports_of_tasks_that_another_node_has() -> None:
    w = Watched()
    w.nodes(2, cpu=2)
    job = w.tasks(1)
    w.cycle()
    w.report(job, "w", 0, 1, "succeeded", node="n1")
    w.cycle()
    assert w.figure("foreign_reports_total") == 1


# -- the writer --------------------------------------------------------------------------------------------------


def test_readiness() -> None:
    w = Watched()
    assert figures(w.metrics)["ready"] == {"": 1}
    assert figures(w.metrics)["readiness_transitions_total"] == {"ready": 1, "not_ready": 0}
    w.restart(ready=False)
    assert figures(w.metrics)["ready"] == {"": 0}
    w.mark_ready()
    w.cycle()
    assert figures(w.metrics)["ready"] == {"": 1}
    assert figures(w.metrics)["readiness_transitions_total"] == {"ready": 2, "not_ready": 1}


def test_batch_size() -> None:
    w = Watched()
    w.nodes(3, cpu=1)
    w.cycle()
    w.cycle()
    assert w.figure("batch_size_count") == 2
    assert w.figure("batch_size_sum") == 3
    buckets = w.figures("batch_size_bucket")
    assert (buckets["0.0"], buckets["2.0"], buckets["5.0"]) == (1, 1, 2)


def test_cycle_time_by_phase_and_journal_latency() -> None:
    w = Watched()
    w.node("n1", cpu=1)
    w.cycle()
    once = dict.fromkeys(["intake", "expiry", "match", "holds", "preempt", "demand", "seal", "encode"], 1)
    assert w.figures("cycle_seconds_count") == once
    assert w.figure("journal_append_seconds_count") == 1
    w.cycle()  # changes nothing, so that nothing is written
    assert w.figures("cycle_seconds_count") == {**dict.fromkeys(once, 2), "encode": 1}
    assert w.figure("journal_append_seconds_count") == 1
    assert all(value >= 0 for value in w.figures("cycle_seconds_sum").values())


class Clockwork:
    """A steady clock that moves by a given step at each reading."""

    def __init__(self, *steps: float) -> None:
        self.now, self.steps = 0.0, list(steps)

    def __call__(self) -> float:
        self.now += self.steps.pop(0)
        return self.now


def test_times_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched()
    w.node("n1", cpu=1)
    monkeypatch.setattr("fairlead.writer.clock.perf_counter", Clockwork(100, 1, 2, 4, 8, 16, 32, 64, 128, 256))
    w.cycle()
    taken = {labels: round(value) for labels, value in w.figures("cycle_seconds_sum").items()}
    phases = ("intake", "expiry", "match", "holds", "preempt", "demand", "seal", "encode")
    assert taken == {phase: 2**at for at, phase in enumerate(phases)}
    assert round(w.figure("journal_append_seconds_sum")) == 256


def writer_with(metrics: Metrics, journal: MemoryJournal) -> Writer:
    writer = Writer(journal, "default", [metrics])
    config = parse_config({"partitions": {"default": {}}})["default"]
    node = AddNode(name="n1", spec=parse_node({"name": "n1", "resources": {"cpu": 4}})[1], operator=True)
    writer.cycle([Configure(config=config, version=1, operator=True), MarkReady(operator=True), node], 1)
    return writer


def submission(count: int, cpu: int = 1) -> Submit:
    return Submit(spec=parse_job({"user": "ann", "stages": [{"count": count, "resources": {"cpu": cpu}}]}), user="ann")


@pytest.mark.parametrize("how", ["failed", "unknown"])
def test_a_cycle_that_is_not_durable_counts_nothing(how: Any) -> None:
    metrics, journal = Metrics(), MemoryJournal()
    writer = writer_with(metrics, journal)
    writer.cycle([submission(2), submission(9)], 2)
    before = figures(metrics)
    journal.break_next(how)
    commands: list[Command] = [submission(1), submission(20), Kill(job="2", operator=True)]
    with pytest.raises(Stopped):
        writer.cycle(commands, 3)
    after = figures(metrics)
    # The only change is that the partition is not ready now.
    assert after.pop("ready") == {"": 0} and before.pop("ready") == {"": 1}
    assert after.pop("readiness_transitions_total") == {"ready": 1, "not_ready": 1}
    assert before.pop("readiness_transitions_total") == {"ready": 1, "not_ready": 0}
    assert after == before


def test_what_was_written_in_doubt_shows_in_the_lanes() -> None:
    w = Watched()
    w.tasks(3)
    w.cycle()
    w.tasks(4)
    w.break_journal("unknown", written=True)
    w.cycle()
    assert w.figures("lane_pending_tasks") == {"root.default, cpu=1": 7}
    assert w.figures("upserts_total")["inserted"] == 1  # the other one was never counted


def test_partitions_are_counted_apart_and_go() -> None:
    w = Watched({"partitions": {"default": {}, "second": {}}})
    w.tasks(3)
    w.tasks(4, partition="second")
    w.cycle()
    assert figures(w.metrics)["lane_pending_tasks"] == {"root.default, cpu=1": 3}
    assert figures(w.metrics, "second")["lane_pending_tasks"] == {"root.default, cpu=1": 4}
    writer = w.cluster.writers["second"]
    w.configure({"partitions": {"default": {}}})
    w.cycle()
    writer.cycle([submission(1)], w.now)  # refused, and nothing new is counted
    gone = figures(w.metrics, "second")
    assert "lane_pending_tasks" not in gone and "ready" not in gone
    assert gone["asks_ended_total"] == {"completed": 0, "cancelled": 1}


def test_each_has_a_registry_of_its_own() -> None:
    one, other = Watched(), Watched()
    one.tasks(1)
    one.cycle()
    assert one.figures("upserts_total")["inserted"] == 1
    assert other.figures("upserts_total")["inserted"] == 0


# -- the page ----------------------------------------------------------------------------------------------------


def now(w: Watched, name: str) -> dict[str, float]:
    return figures(w.metrics, at=w.now).get(name, {})


def test_shares_by_queue() -> None:
    w = Watched({"unit": "slots", "rebalance_threshold": 5, "rebalance_after": "1min"})
    w.queue("root.a", share=30)
    w.queue("root.b", share=90)
    w.nodes(8, cpu=1)
    w.tasks(8, queue="root.a", min=1)
    w.cycle()
    assert now(w, "queue_share_percent") == {"root": 100, "root.a": 25, "root.b": 75}
    assert now(w, "queue_entitlement_percent") == {"root": 100, "root.a": 25, "root.b": 75}
    assert now(w, "queue_use_percent") == {"root": 100, "root.a": 100, "root.b": 0}
    assert now(w, "queue_loan_percent") == {"root": 0, "root.a": 75, "root.b": 0}
    assert now(w, "spread_percent") == {"root": 0}
    w.tasks(4, queue="root.b", min=1)
    w.cycle()
    assert now(w, "spread_percent") == {"root": 150}
    w.advance(100)
    assert now(w, "queue_use_percent") == {"root": 100, "root.a": 50, "root.b": 50}
    assert (w.figure("rebalances_total"), w.figure("rebalance_victims_total")) == (1, 4)


def test_shares_follow_capacity_and_configuration() -> None:
    w = Watched({"unit": "slots"})
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    w.nodes(4, cpu=1)
    w.tasks(2, queue="root.a")
    w.cycle()
    assert now(w, "queue_use_percent")["root.a"] == 50
    w.nodes(4, prefix="m", cpu=1)
    w.set_share("root.a", 150)
    w.cycle()
    assert now(w, "queue_use_percent")["root.a"] == 25
    assert now(w, "queue_entitlement_percent")["root.a"] == 75


def test_holds_by_job_and_age() -> None:
    w = Watched({"starving_after": "10s"})
    w.nodes(2, cpu=1)
    full = w.tasks(2, name="full")
    w.advance(0)
    w.tasks(2, name="gang")
    w.advance(11)
    w.tasks(1, name="other")
    w.advance(4)
    assert now(w, "held_nodes") == {"": 2}
    assert now(w, "hold_age_seconds") == {"gang, w": 5 - 0.000001}
    before = w.partition().now
    w.advance(5)
    assert w.partition().now == before  # no cycle changed anything, and the hold is older all the same
    assert now(w, "hold_age_seconds") == {"gang, w": 10 - 0.000001}
    w.finish(full)
    w.advance(0)
    assert now(w, "held_nodes") == {"": 0} and "hold_age_seconds" not in figures(w.metrics)


def test_claims_and_victims_by_cause() -> None:
    w = Watched({"queues": {"root": {"a": {}, "b": {"guarantee": {"cpu": 1}}}}})
    w.nodes(3, cpu=1)
    w.tasks(3, queue="root.a", min=1)
    w.advance(1)
    w.submit(name="high", queue="root.a", priority=1, stages=[{"count": 1, "resources": {"cpu": 1}}])
    w.cycle()
    assert now(w, "promised_nodes") == {"": 1}
    w.advance(0)
    w.tasks(1, queue="root.b")
    w.advance(0)
    assert w.figures("claims_total") == {"priority": 1, "guarantee": 1, "share": 0}
    assert w.figures("victims_total") == {"priority": 1, "guarantee": 1, "share": 0}


def test_tasks_that_do_not_stop() -> None:
    w = Watched({"preempt_grace": "10s"})
    w.node("n1", cpu=2)
    w.tasks(2, name="hangs")
    w.advance(1)
    w.ignore_stops("hangs")
    w.kill("hangs")
    w.advance(39)
    assert "tasks_not_stopping" not in figures(w.metrics)
    w.advance(2)
    assert w.figures("tasks_not_stopping") == {"hangs, n1, w": 2}
    w.report("hangs", "w", 0, 1, "stopped", "n1")
    w.report("hangs", "w", 1, 1, "stopped", "n1")
    w.cycle()
    assert "tasks_not_stopping" not in figures(w.metrics)


def test_backfill_and_planned_starts() -> None:
    w = Watched({"backfill": "easy"})
    w.node("n1", cpu=4)
    w.tasks(3, name="now", estimate=100, duration=90)
    w.advance(0)
    w.tasks(4, name="head")
    w.tasks(1, name="short", estimate=50, duration=50)
    w.advance(0)
    assert w.figure("backfilled_tasks_total") == 1
    w.advance(100)
    assert w.job("head").state == "running"
    assert w.figure("planned_start_late_seconds_count") == 1
    buckets = w.figures("planned_start_late_seconds_bucket")
    assert (buckets["-60.0"], buckets["-1.0"]) == (0, 1)  # ten seconds before its time


def test_what_is_counted_for_a_scrape() -> None:
    w = Watched({"pools": {"cloud": {"max": 4, "node": {"cpu": 2}}}})
    w.nodes(3, cpu=1)
    w.drain("n1")
    first, second = w.tasks(1), w.tasks(1)
    w.advance(1)
    w.tasks(2)  # a gang that fits nowhere
    w.finish(first)
    w.disconnect("n2")
    w.advance(1)
    w.metrics.look(w.partition(), InboxFigures(3, 2, 1, 0))
    found = figures(w.metrics)
    assert found["nodes"] == {"up": 1, "disconnected": 1, "draining": 1, "disabled": 0, "lost": 0}
    assert found["jobs"] == {"waiting": 1, "running": 1, "ended": 1}
    assert found["queue_running_tasks"] == {"root.default": 1}
    uses = w.pools()["cloud"]
    for what in ("available", "pending", "idle", "ordered"):
        assert found[f"pool_{what}_nodes"] == {"cloud": uses[what]}, what
    assert found["pool_ordered_nodes"]["cloud"] > 0
    assert found["inbox_messages"] == {"commands": 3, "reports": 2}
    assert found["inbox_refused_total"] == {"commands": 1, "reports": 0}
    assert w.job(second).state == "running"


def test_the_page_has_every_metric_and_no_other(tmp_path: Path) -> None:
    w = Watched({"rebalance_threshold": 1, "starving_after": "1s"})
    machines = Figures(w.metrics.registry)
    machines.begin("default", "gpu")
    history = History(tmp_path / "history")
    PromisedStarts(history, w.metrics.registry).reached("default", 0)
    history.close()
    w.queue("root.a")
    w.queue("root.b")
    w.node("n1", cpu=1)
    hangs = w.tasks(1, queue="root.a")
    w.advance(0)
    w.tasks(1, queue="root.a")
    w.ignore_stops(hangs)
    w.kill(hangs)
    w.advance(61)
    w.node("p1", cpu=0.1, pool="gpu")
    w.cycle()
    w.metrics.look(w.partition())
    defined = {}
    for family in text_string_to_metric_families(w.metrics.text(w.now)):
        if family.name.endswith("_created"):
            continue
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"partition", "le"})
        name = family.name + ("_total" if family.type == "counter" else "")
        defined[name] = [family.type, ", ".join(labels), family.documentation]
    others = ("fairlead_kubernetes_", "fairlead_spans_")  # tests/test_spans.py has the last ones
    rows = [row for row in rows_of_the_page() if not row[0].startswith(others)]
    assert {name: rest for name, *rest in rows} == defined
    assert len(rows) == len(defined)


def rows_of_the_page() -> list[list[str]]:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    lines = [line for line in page.replace("`", "").splitlines() if line.startswith("| fairlead_")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_metric_of_an_adapter() -> None:
    source = (ROOT / "src/fairlead/kubernetes/adapter_health.py").read_text(encoding="utf-8")
    defined = {
        name + "_total" * (kind == "Counter")
        for kind, name in re.findall(r'(Gauge|Counter)MetricFamily\(\s*"(\w+)"', source)
    }
    assert {row[0] for row in rows_of_the_page() if row[0].startswith("fairlead_kubernetes_")} == defined
