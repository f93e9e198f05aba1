"""Recovery is exact: the journal alone gives the live state back, byte for byte, at every step.

First small worlds, one for each part of the state; then random ones. All of them use a real file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fairlead.core.commands import Accepted
from fairlead.core.dump import dump, load
from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.journal import MemoryJournal, SqliteJournal
from fairlead.journal.codec import restore, restore_cluster, stream_of
from fairlead.testing import World
from tests.kill_child import PARTITION, Driver

Steps = Iterator[None]
SCENES: dict[str, Callable[[World], Steps]] = {}
CPU = {"cpu": 1}


def scene(play: Callable[[World], Steps]) -> Callable[[World], Steps]:
    """Register steps of a world; at each yield the recovered state is compared with the live one."""
    SCENES[play.__name__] = play
    return play


@scene
def gang(w: World) -> Steps:
    w.nodes(2, cpu=2, gpu=2)
    large = w.submit(name="large", stages=[{"name": "w", "count": 6, "resources": CPU}])
    small = w.submit(name="small", stages=[{"name": "w", "count": 3, "resources": {"cpu": 1, "gpu": 1}}])
    w.cycle()
    assert not w.placements(large) and len(w.placements(small)) == 3
    yield
    w.node("n9", cpu=8, labels={"rack": "r1"}, taints=["slow"])
    w.update_node("n0", cpu=9)
    w.cycle()
    assert len(w.placements(large)) == 6
    yield
    w.advance(5)
    w.finish(small)
    w.finish(large, index=2)
    w.cycle()
    yield


@scene
def whole_jobs(w: World) -> Steps:
    w.nodes(2, cpu=4)
    stages = [
        {"name": "a", "count": 3, "min": 1, "resources": CPU},
        {"name": "b", "count": 2, "resources": {"cpu": 2}, "on_loss": "restart"},
    ]
    jobs = [w.submit(name=f"whole{at}", gang="job", stages=stages) for at in range(3)]
    w.cycle()
    yield
    w.prioritise(jobs[2], "b")
    w.scale(jobs[1], "a", 2)
    w.cycle()
    assert [ask.job for ask in w.lanes()["root.default", "cpu=1 + cpu=2"]] == [jobs[2], jobs[1]]
    yield
    w.cycle()
    w.fail_node(w.placements(jobs[0])["b", 1])
    w.cycle()
    yield  # one stage is lost, the others still stop
    w.cycle()
    assert [ask.job for ask in w.lanes()["root.default", "cpu=1 + cpu=2"]] == [jobs[2], jobs[0], jobs[1]]
    yield
    w.node("n2", cpu=8)
    w.refuse_launches("n2")
    w.cycle()
    yield
    w.cycle()
    yield
    w.return_node("n2")
    w.cancel(jobs[1], "a")
    w.advance(10)
    assert [w.job(job).state for job in jobs] == ["running", "killed", "running"]
    yield


@scene
def arrays(w: World) -> Steps:
    w.nodes(3, cpu=2)
    job = w.submit(stages=[{"name": "a", "count": 1000, "min": 1, "resources": CPU, "duration": 7}])
    w.cycle()
    yield
    for _ in range(5):
        w.advance(8)
        yield
    w.cancel(job, "a")
    w.advance(8)
    assert w.job(job).state == "succeeded"
    yield


@scene
def failures_with_retries(w: World) -> Steps:
    w.nodes(2, cpu=4)
    job = w.submit(stages=[{"name": "s", "count": 4, "min": 1, "resources": CPU, "tries": 3}])
    w.cycle()
    for _ in range(3):
        w.finish(job, "s", 0, exit_code=3)
        w.cycle()
        yield
        w.advance(1)
    assert w.task(job, "s", 0).state == "failed"
    w.refuse_launches("n0")
    again = w.submit(name="again", stages=[{"name": "s", "count": 4, "resources": CPU, "on_loss": "restart"}])
    w.cycle()
    yield
    w.cycle()
    yield
    w.fail_node("n1")
    w.cycle()
    yield
    w.return_node("n1")
    w.cycle()
    w.kill(again)
    w.cycle()
    yield


@scene
def scaling(w: World) -> Steps:
    w.nodes(2, cpu=4)
    job = w.submit(stages=[{"name": "s", "count": 3, "resources": CPU}])
    w.scale(job, "s", 4)
    w.cycle()
    yield
    w.hold_acks("n1")
    for count in (8, 2, 7, 20, 1):
        w.scale(job, "s", count)
        w.cycle()
        yield
        w.cycle()
        yield
    w.release_acks("n1")
    w.cycle()
    yield


@scene
def killing(w: World) -> Steps:
    w.nodes(1, cpu=4)
    jobs = [w.submit(name=f"k{at}", stages=[{"count": 3, "resources": CPU}]) for at in range(3)]
    late = w.submit(name="late", after=[jobs[0]], stages=[{"resources": CPU}])
    w.cycle()
    yield
    w.hold_acks("n0")
    w.silence("n0")
    w.kill(jobs[0])
    w.kill(jobs[2])
    w.cycle()
    assert w.job(late).state == "failed"
    yield  # still stopping
    w.advance(100)
    yield  # the node is lost, and with it what was stopping
    w.advance(25 * 3600)
    assert jobs[0] not in w.partition().jobs
    yield


@scene
def resource_manager(w: World) -> Steps:
    rm = w.rm("k8s")
    rm.register()
    rm.update(
        nodes=[{"name": "m0", "resources": {"cpu": 2, "gpu": 1}}],
        jobs=[{"job": "app", "user": "ann"}],
        recover=[
            {"job": "app", "ask": "a", "node": "m0", "index": 5, "resources": {"cpu": 2}},
            {"job": "app", "ask": "b", "node": "m0", "resources": {"cpu": 2, "gpu": 1}},  # above what the node has
        ],
    )
    w.cycle()
    assert not [event for event in rm.events() if event.what == "rejected"]
    yield
    rm.update(asks=[{"job": "app", "ask": "a", "count": 3, "resources": {"cpu": 2}}])
    w.cycle()
    yield
    w.restart()
    rm.register()
    rm.update(asks=[{"job": "app", "ask": "b", "withdraw": True}], releases=[{"job": "app", "ask": "b", "index": 0}])
    w.cycle()
    yield
    rm.update(nodes=[{"name": "m0", "action": "lose"}])
    w.cycle()
    yield
    rm.update(jobs=[{"job": "app", "remove": True}], nodes=[{"name": "m0", "action": "remove"}])
    w.cycle()
    yield


@scene
def keys(w: World) -> Steps:
    w.nodes(1, cpu=1)
    stages = [{"name": "s", "resources": CPU, "duration": 10}]
    job = w.submit(name="k", key="one", stages=stages)
    w.cycle()
    w.submit(name="k", key="one", stages=stages)
    w.submit(name="k", user="bob", key="one", stages=stages)
    w.cycle()
    assert all(isinstance(answer, Accepted) for answer in w.answers())
    yield
    w.advance(30)
    assert w.job(job).state == "succeeded"
    yield
    w.advance(86_400)  # the jobs are forgotten, their keys a while later
    yield
    w.advance(86_400)
    assert not w.partition().keys
    yield


@scene
def order_of_lanes(w: World) -> Steps:
    w.nodes(1, cpu=1)
    jobs = [w.submit(name=f"o{at}", stages=[{"name": "s", "count": 1, "resources": CPU}]) for at in range(5)]
    w.cycle()
    yield
    w.set_priority(jobs[3], 7)
    w.prioritise(jobs[4], "s")
    w.cycle()
    yield
    w.reset_lane("root.default", jobs[4])
    w.cycle()
    yield
    w.kill(jobs[0])
    w.cycle()
    w.cycle()
    assert w.placements(jobs[3])
    yield


@scene
def a_queue_goes_before_its_ended_job(w: World) -> Steps:
    tree = {"root": {"a": {"users": {"*": {"max_jobs": 5}}}, "b": {}}}
    w.configure({"queues": tree})
    w.nodes(2, cpu=2)
    w.cycle()
    ended = w.submit(name="ended", queue="root.a", stages=[{"resources": CPU, "duration": 1}])
    other = w.submit(name="other", queue="root.a", stages=[{"resources": CPU}])
    w.cycle()
    w.advance(2)
    yield
    w.configure({"queues": {"root": {"b": {}}}})
    w.cycle()
    assert w.partition().queues["root.a"].state == "draining"
    yield
    w.kill(other)
    w.cycle()
    w.advance(1)
    assert "root.a" not in w.partition().queues and ended in w.partition().jobs
    yield
    w.configure({"queues": tree})  # another queue of the same name, which the old jobs are no part of
    w.cycle()
    new = w.submit(name="new", queue="root.a", stages=[{"resources": CPU}])
    w.cycle()
    assert w.placements(new)
    yield
    w.advance(90_000)
    assert ended not in w.partition().jobs
    yield


@scene
def partitions(w: World) -> Steps:
    w.configure({"partitions": {PARTITION: {}, "east": {"unit": "slots"}, "west": {"pools": {"p": {"node": CPU}}}}})
    w.cycle()
    for name in ("east", "west"):
        w.node(f"{name}0", cpu=2, partition=name)
        w.submit(name=name, partition=name, stages=[{"count": 2, "resources": CPU, "duration": 5}])
    w.cycle()
    yield
    w.stop_queue("root.default", "east")
    w.submit(name="refused", partition="east", stages=[{"resources": CPU}])
    w.cycle()
    yield
    w.advance(10)
    w.configure({"partitions": {PARTITION: {}, "west": {"lease": "20s"}}})
    w.cycle()
    assert w.journal.last(stream_of("east")) == 0
    yield
    w.configure({"partitions": {PARTITION: {}, "west": {}, "east": {}}})
    w.cycle()
    yield


# -- the comparison ----------------------------------------------------------------------------------------------


def compare(w: World) -> None:
    """Check that every way of recovering gives the live state."""
    configured, seq = restore_cluster(w.journal)
    assert (configured, seq) == (w.cluster.configured, w.cluster.configuration.seq)
    for name, writer in w.cluster.writers.items():
        live = dump(writer.partition)
        state, seq = restore(w.journal, name)
        check_all(state)
        assert (dump(state), seq) == (live, writer.seq)
        loaded = load(live)
        check_all(loaded)
        assert dump(loaded) == live


def compare_from_snapshots(w: World, dice: Random) -> None:
    """Check that a snapshot at any record, with the log behind it, gives the live state too."""
    for name, writer in w.cluster.writers.items():
        if writer.seq:
            at = dice.randint(1, writer.seq)
            assert dump(through_snapshot(w.journal, name, at)) == dump(writer.partition)


def through_snapshot(journal: Any, partition: str, at: int) -> Any:
    """Replay the records up to `at` elsewhere, snapshot there, forget the records, and go on with the rest."""
    stream = stream_of(partition)
    copy = MemoryJournal()
    epoch = copy.reign(stream)
    for record in journal.read(stream):
        copy.append(stream, epoch, record.seq, record.payload)
        if record.seq == at:
            state, _ = restore(copy, partition)
            copy.save_snapshot(stream, at, dump(state))
            copy.prune(stream, at)
    state, _ = restore(copy, partition)
    check_all(state)
    return state


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "journal", synchronous="off") as journal:
        yield journal


@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str, journal: SqliteJournal) -> None:
    w = World(journal=journal)
    dice = Random(name)
    for _ in SCENES[name](w):
        compare(w)
        compare_from_snapshots(w, dice)
    w.restart()
    compare(w)


@pytest.mark.parametrize("name", SCENES)
def test_scene_with_restarts(name: str, journal: SqliteJournal) -> None:
    """A restart at every step changes nothing of what happens afterwards."""
    w = World(journal=journal)
    before = World()
    for _ in zip(SCENES[name](w), SCENES[name](before), strict=True):
        compare(w)
        w.restart()
        compare(w)
        for writer in w.cluster.writers:
            assert w.dump(writer) == before.dump(writer)


@pytest.mark.parametrize("seed", range(4))
def test_random_commands(seed: int, journal: SqliteJournal) -> None:
    driver = Driver(journal, seed)
    driver.begin()
    for turn in range(120):
        driver.cycle()
        if turn % 5 == 0:
            state, seq = restore(journal, PARTITION)
            check_all(state)
            assert (dump(state), seq) == (dump(driver.state), driver.writer.seq)
            assert dump(load(dump(state))) == dump(state)
    for at in Random(seed).sample(range(1, driver.writer.seq), 5):
        assert dump(through_snapshot(journal, PARTITION, at)) == dump(driver.state)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_commands(seed: int, journal: SqliteJournal) -> None:
    test_random_commands(seed, journal)


def test_a_refused_configuration_leaves_no_trace(journal: SqliteJournal) -> None:
    w = World(journal=journal)
    w.nodes(1, cpu=1)
    w.submit(stages=[{"resources": CPU}])
    w.cycle()
    w.configure({"queues": {"root": {"default": {"below": {}}}}})
    with pytest.raises(Refused):
        w.cycle()
    compare(w)
