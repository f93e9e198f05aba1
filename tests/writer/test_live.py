"""The live loop on a real journal and a real clock. Tests wait for events and counts, never for a fixed time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.changes import JobForgotten
from fairlead.core.commands import Accepted, AddNode, Command, Configure, Kill, MarkReady, Rejected, Report, Submit
from fairlead.core.config import parse_config
from fairlead.core.cycle import Cycle
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.dump import dump
from fairlead.core.effects import Effect, ForNode, Launch
from fairlead.core.invariants import InvariantBroken, check_all
from fairlead.engines.engine import Busy
from fairlead.journal import NotWritten, SqliteJournal, UnknownOutcome
from fairlead.journal.codec import restore
from fairlead.views.metrics.metrics import Metrics
from fairlead.writer.inbox import Inbox, Reply, Slot, Unavailable
from fairlead.writer.loop import BURST, TIMER_PAUSE, LiveWriter, WriterThread
from fairlead.writer.writer import Writer

PARTITION = "default"
SECONDS = 30  # the longest wait of a test; no result depends on it


def configure(**settings: Any) -> Configure:
    config = parse_config({"partitions": {PARTITION: settings}})[PARTITION]
    return Configure(config=config, version=1, operator=True)


def add_node(name: str, cpu: int = 8) -> AddNode:
    return AddNode(name=name, spec=parse_node({"name": name, "resources": {"cpu": cpu}})[1], operator=True)


def submit(name: str, **stage: Any) -> Submit:
    spec = parse_job({"name": "job", "user": "ann", "stages": [{"resources": {"cpu": 1}, **stage}]})
    return Submit(spec=spec, id=name, user="ann")


def report(node: str, launch: Launch, state: Any) -> Report:
    code = 0 if state == "succeeded" else None
    return Report(
        node=node,
        job=launch.job,
        stage=launch.stage,
        indices=launch.indices,
        attempt=launch.attempt,
        state=state,
        exit_code=code,
        number=launch.number,
        operator=True,
    )


class Gated(SqliteJournal):
    """A journal in which appends wait at a gate, and signal when they reach it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, synchronous="off")
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.appended = 0

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        if not self.gate.is_set():
            self.waiting.release()
            assert self.gate.wait(SECONDS)
        super().append(stream, epoch, seq, payload)
        self.appended += 1

    async def reached(self) -> None:
        """Wait until an append is at the gate."""
        await asyncio.to_thread(self.waiting.acquire, True, SECONDS)


class Live:
    """A live writer that records its effects and cycles, and can wait for more."""

    def __init__(self, journal: SqliteJournal, inbox: Inbox | None = None, thread: WriterThread | None = None) -> None:
        self.journal = journal
        self.cycles: list[Cycle] = []
        self.effects: list[Effect] = []
        self._news = asyncio.Event()
        writer = Writer(journal, PARTITION)
        self.thread = thread or WriterThread()
        self.loop = LiveWriter(writer, inbox or Inbox(), self.dispatch, self.publish, self.thread)
        self.task = asyncio.create_task(self.loop.run())

    @property
    def state(self) -> Any:
        return self.loop.writer.partition

    @property
    def records(self) -> int:
        return self.loop.writer.seq

    def dispatch(self, effects: Sequence[Effect]) -> None:
        self.effects += effects
        self._news.set()

    def publish(self, cycle: Cycle) -> None:
        self.cycles.append(cycle)
        self._news.set()

    def offer(self, *commands: Command) -> list[Slot]:
        return [self.loop.inbox.offer(command) for command in commands]

    async def ask(self, *commands: Command) -> list[Reply]:
        return list(await asyncio.gather(*self.offer(*commands)))

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()

    def watch_sleeps(self) -> list[float]:
        """Return a list that gets the length of each later sleep of the loop."""
        asked: list[float] = []
        sleep = self.loop._sleep

        async def watched(seconds: float | None, enough: int) -> None:
            asked.append(0.0 if seconds is None else seconds)
            await sleep(seconds, enough)

        self.loop._sleep = watched  # type: ignore[method-assign]
        return asked

    def launches(self) -> list[tuple[str, Launch]]:
        messages = [effect for effect in self.effects if isinstance(effect, ForNode)]
        return [(message.node, launch) for message in messages for launch in message.launches]

    def stops(self) -> list[str]:
        messages = [effect for effect in self.effects if isinstance(effect, ForNode)]
        return [stop.job for message in messages for stop in message.stops]


@asynccontextmanager
async def started(
    journal: SqliteJournal, nodes: int = 2, inbox: Inbox | None = None, **settings: Any
) -> AsyncIterator[Live]:
    """A loop whose partition is configured and ready, and idle; it is closed at the end."""
    live = Live(journal, inbox)
    named = [add_node(f"n{at}") for at in range(nodes)]
    answers = await live.ask(MarkReady(operator=True), *named)
    answers += await live.ask(configure(**settings))  # alone, so that the writer is not busy afterwards
    assert all(isinstance(answer, Accepted) for answer in answers), answers
    live.cycles.clear()
    try:
        yield live
    finally:
        if isinstance(journal, Gated):
            journal.gate.set()
        await live.loop.close()
        live.thread.close()
    assert live.task.done()
    check_all(live.state)
    if not live.task.cancelled() and live.task.exception() is None and not live.loop.stopped:
        assert dump(restore(journal, PARTITION)[0]) == dump(live.state)


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    with Gated(tmp_path / "j") as made:
        yield made
        made.gate.set()


def play(story: Any) -> None:
    async def main() -> None:
        await asyncio.wait_for(story, SECONDS)

    asyncio.run(main())


# -- batches -----------------------------------------------------------------------------------------------------


def test_a_burst_is_one_cycle_and_one_record(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, nodes=20) as live:
            cycles, records, appended = len(live.cycles), live.records, journal.appended
            answers = await live.ask(*[submit(f"j{at}") for at in range(100)])
            assert answers == [Accepted(job=f"j{at}") for at in range(100)]
            await live.until(lambda: len(live.launches()) == 100)
            assert len(live.cycles) == cycles + 1
            assert live.records == records + 1 == journal.last(live.loop.writer.stream)
            assert journal.appended == appended + 1
            messages = [effect for effect in live.effects if isinstance(effect, ForNode)]
            assert len(messages) <= 20
            assert len({message.node for message in messages}) == len(messages)

    play(story())


def test_a_burst_from_many_callers(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            cycles = len(live.cycles)
            await asyncio.gather(*(live.ask(submit(f"j{at}")) for at in range(100)))
            assert len(live.cycles) == cycles + 1

    play(story())


def test_a_burst_larger_than_a_batch(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, max_batch=10, batch_window="1h") as live:
            cycles = len(live.cycles)
            # Full batches do not wait for the window; the rest, which would, is done when the loop is closed.
            slots = live.offer(*[submit(f"j{at}") for at in range(95)])
            await asyncio.gather(*slots[:90])
            assert len(live.cycles) == cycles + 9
            assert not any(slot.done() for slot in slots[90:])
            await live.loop.close()
            assert [await slot for slot in slots] == [Accepted(job=f"j{at}") for at in range(95)]
            assert len(live.cycles) == cycles + 10

    play(story())


def test_a_busy_writer_lets_messages_gather(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, max_batch=10, batch_window="1h") as live:
            await live.ask(submit("a"))  # alone: not busy
            await live.ask(submit("b"))
            for at in range(BURST):  # a few follow each other at once
                await live.ask(submit(f"c{at}"), submit(f"d{at}"))
            live.offer(submit("e"), submit("f"))  # busy from here on, and for 12 minutes
            await asyncio.sleep(0.05)
            first = live.offer(submit("g"))
            await asyncio.sleep(0.05)
            held = live.loop.inbox.waiting
            assert not first[0].done() and held in (1, 3)
            rest = live.offer(*[submit(f"h{at}") for at in range(10 - held)])
            await asyncio.gather(*first, *rest)  # ten are enough

    play(story())


@pytest.mark.parametrize(
    ("cores", "quick", "slow"), [(1, 0.010, 0.024), (2, 0.010, 0.024), (4, 0.010, 0.018), (16, 0.0025, 0.0135)]
)
def test_how_long_a_busy_writer_waits(journal: Gated, cores: int, quick: float, slow: float) -> None:
    async def story() -> None:
        async with started(journal) as live:
            loop = LiveWriter(
                live.loop.writer, Inbox(), live.dispatch, live.publish, live.thread, lambda: 0, lambda: 0.0, cores
            )
            for _ in range(BURST):
                assert loop._pause(2, 0.0, 1.0) == 0.0
            assert loop._pause(2, 0.0, 1.0) == pytest.approx(quick)
            assert loop._pause(2, 0.012, 1.0) == pytest.approx(slow)
            assert loop._pause(2, 1.0, 1.0) == pytest.approx(0.05)

    play(story())


def test_what_arrives_during_a_write_is_the_next_batch(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            cycles = len(live.cycles)
            journal.gate.clear()
            first = live.offer(submit("a"))
            await journal.reached()
            later = live.offer(*[submit(f"b{at}") for at in range(30)])
            assert not any(slot.done() for slot in first + later)  # nothing is answered before it is durable
            assert not live.cycles and not live.effects
            journal.gate.set()
            await asyncio.gather(*first, *later)
            assert len(live.cycles) == cycles + 2
            assert [len(cycle.answers) for cycle in live.cycles] == [1, 30]

    play(story())


def test_reports_go_before_commands(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, max_batch=10) as live:
            await live.ask(submit("a"), submit("b"))
            await live.until(lambda: len(live.launches()) == 2)
            journal.gate.clear()
            live.offer(submit("first"))
            await journal.reached()
            # A flood, and then two acknowledgements: they are in the very next cycle, and before everything else.
            flood = live.offer(*[submit(f"f{at}") for at in range(100)])
            reports = live.offer(*[report(node, launch, "running") for node, launch in live.launches()])
            order: list[str] = []
            for name, slots in (("command", flood), ("report", reports)):
                for slot in slots:
                    slot.add_done_callback(lambda _, name=name: order.append(name))
            live.cycles.clear()
            journal.gate.set()
            await asyncio.gather(*reports)
            await asyncio.gather(*flood)
            assert order == ["report"] * 2 + ["command"] * 100
            assert [len(cycle.answers) for cycle in live.cycles][1] == 12
            assert {
                allocation.state for allocation in live.state.allocations.values() if allocation.stage.job.id in "ab"
            } == {"running"}

    play(story())


def test_answers_come_in_the_order_of_the_commands(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, max_batch=7, batch_window=0) as live:
            order: list[int] = []
            commands: list[Command] = [
                Kill(job=f"j{at - 1}", user="ann") if at % 3 == 1 else submit(f"j{at}") if at % 3 == 0 else submit("j0")
                for at in range(90)
            ]
            slots = live.offer(*commands)
            for at, slot in enumerate(slots):
                slot.add_done_callback(lambda _, at=at: order.append(at))
            answers = await asyncio.gather(*slots)
            assert order == list(range(90))
            for at, answer in enumerate(answers):
                if at % 3 == 2:  # a bad one gets its own answer and disturbs no other
                    assert isinstance(answer, Rejected) and answer.code == "conflict"
                else:
                    assert isinstance(answer, Accepted), (at, answer)

    play(story())


# -- bounds ------------------------------------------------------------------------------------------------------


def test_a_full_inbox_refuses_and_loses_nothing(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, inbox=Inbox(max_commands=20)) as live:
            journal.gate.clear()
            taken = {"first": live.offer(submit("first"))[0]}
            await journal.reached()
            refused: list[str] = []
            for at in range(50):
                try:
                    taken[f"j{at}"] = live.loop.inbox.offer(submit(f"j{at}"))
                except Busy:
                    refused.append(f"j{at}")
            assert len(taken) == 21 and len(refused) == 30 == live.loop.inbox.refused_commands
            journal.gate.set()
            for name, slot in taken.items():
                assert await slot == Accepted(job=name)
            assert set(live.state.jobs) == set(taken)
            assert await live.ask(submit("again")) == [Accepted(job="again")]

    play(story())


def test_a_caller_that_goes_away_withdraws_nothing(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            live.offer(submit("a"))[0].cancel()
            assert await live.ask(submit("b")) == [Accepted(job="b")]
            assert set(live.state.jobs) == {"a", "b"}

    play(story())


# -- what starts a cycle -----------------------------------------------------------------------------------------


def test_an_idle_loop_does_nothing(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            await live.ask(submit("a"))
            await live.until(live.launches)
            sleeps = live.watch_sleeps()
            cycles, records = len(live.cycles), journal.last(live.loop.writer.stream)
            for _ in range(100):
                await asyncio.sleep(0.002)
            assert (len(live.cycles), journal.last(live.loop.writer.stream)) == (cycles, records)
            assert not sleeps  # it did not even wake up

    play(story())


def test_a_time_limit_is_met_by_time_alone(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            await live.ask(submit("a", time_limit="20ms"), submit("b"))
            await live.until(lambda: len(live.launches()) == 2)
            await live.ask(*[report(node, launch, "running") for node, launch in live.launches()])
            await live.until(live.stops)
            assert live.stops() == ["a"]

    play(story())


def test_ended_jobs_are_forgotten_by_time_alone(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, keep_ended="10ms") as live:
            await live.ask(submit("a"))
            await live.until(live.launches)
            await live.ask(*[report(node, launch, "succeeded") for node, launch in live.launches()])
            await live.until(lambda: any(isinstance(change, JobForgotten) for c in live.cycles for change in c.changes))
            assert not live.state.jobs

    play(story())


def test_a_restarted_partition_becomes_ready_by_time_alone(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, ready_after="10ms"):
            pass
        live = Live(journal)
        await live.ask(submit("a"))
        await live.until(live.launches)
        await live.loop.close()

    play(story())


def test_a_timer_that_cannot_be_served_does_not_spin(journal: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the core wrongly reports something as due again and again, the loop pauses between cycles."""
    monkeypatch.setattr("fairlead.writer.loop.due", lambda partition: partition.now)

    async def story() -> None:
        async with started(journal, batch_window=0) as live:
            sleeps = live.watch_sleeps()
            before = len(live.cycles)
            await live.until(lambda: len(live.cycles) >= before + 5)
            assert sum(sleeps) > 3 * TIMER_PAUSE
            assert await live.ask(submit("a")) == [Accepted(job="a")]

    play(story())


def test_unfinished_work_follows_at_once(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, nodes=1, max_placed=1, batch_window="1h") as live:
            answers = await live.ask(submit("a", count=5, min=1), submit("b"))  # two: a busy writer
            assert answers == [Accepted(job="a"), Accepted(job="b")]
            await live.until(lambda: len(live.launches()) == 6)
            assert [cycle.more for cycle in live.cycles].count(True) >= 5
            assert [len(cycle.answers) for cycle in live.cycles if cycle.answers] == [2]

    play(story())


def test_work_outside_of_the_loop(tmp_path: Path) -> None:
    """Two partitions' loops share a journal; what is done to one between turns is followed by a cycle when asked."""

    async def story() -> None:
        with Gated(tmp_path / "j") as journal:
            thread = WriterThread()
            live = Live(journal, thread=thread)
            other = LiveWriter(Writer(journal, "other"), Inbox(), lambda _: None, lambda _: None, thread)
            task = asyncio.create_task(other.run())
            await live.ask(configure(launch_timeout="20ms"), MarkReady(operator=True), add_node("n0"))
            await other.inbox.offer(configure())
            await other.inbox.offer(add_node("n0"))
            writer = live.loop.writer
            slots = [other.inbox.offer(submit(f"o{at}")) for at in range(5)]
            await thread.alone(lambda: writer.cycle([submit("a")], writer.partition.now + 1))
            live.loop.wake()
            await live.until(live.launches)  # the timer fired, so the loop took the launch back and launched again
            assert live.launches()[0][1].attempt == 2
            assert [await slot for slot in slots] == [Accepted(job=f"o{at}") for at in range(5)]
            await live.loop.close()
            await other.close()
            assert await task == await live.task == ""
            assert dump(restore(journal, PARTITION)[0]) == dump(live.state)
            thread.close()

    play(story())


# -- ends --------------------------------------------------------------------------------------------------------


class Failing(Gated):
    """The next append fails, before or after it was written."""

    problem: Exception | None = None
    written = False

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        if self.problem is None or self.written:
            super().append(stream, epoch, seq, payload)
        if self.problem is not None:
            raise self.problem


@pytest.mark.parametrize("how", ["failed", "unknown", "unknown, written"])
def test_a_failed_write_answers_every_caller_and_a_restart_goes_on(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        with Failing(tmp_path / "j") as journal:
            async with started(journal) as live:
                await live.ask(submit("before"))
                journal.problem = NotWritten("no room") if how == "failed" else UnknownOutcome("no answer")
                journal.written = how.endswith("written")
                asked = live.offer(submit("asked"))
                later = live.offer(*[submit(f"f{at}") for at in range(200)])
                replies = await asyncio.gather(*asked, *later)
                assert await live.task == live.loop.stopped
                assert live.loop.stopped
                assert all(isinstance(reply, Unavailable) for reply in replies)
                # Doubt is only about the cycle that was being written.
                assert [reply.doubtful for reply in replies] == [how != "failed"] * 100 + [False] * 101  # type: ignore[union-attr]
                late = live.offer(submit("late"))[0]
                assert late.done() and isinstance(await late, Unavailable)
                assert [launch for launch in live.launches() if launch[1].job != "before"] == []
        with Gated(tmp_path / "j") as again:
            live = Live(again)
            assert ("asked" in live.state.jobs) == journal.written
            assert not {"f150", "late"} & set(live.state.jobs) and "before" in live.state.jobs
            await live.until(live.launches)  # what was assigned and not acknowledged is sent again
            assert live.launches()[0][1].job == "before"
            assert await live.ask(MarkReady(operator=True), submit("more")) == [Accepted(), Accepted(job="more")]
            await live.loop.close()
            check_all(live.state)

    play(story())


def test_a_fenced_writer_ends(tmp_path: Path) -> None:
    async def story() -> None:
        with Gated(tmp_path / "j") as journal, SqliteJournal(tmp_path / "j", synchronous="off") as other:
            live = Live(journal)
            await live.ask(configure(), MarkReady(operator=True), add_node("n0"))
            next_one = Live(other)
            [reply] = await live.ask(submit("old"))
            assert isinstance(reply, Unavailable) and not reply.doubtful and "fenced" in str(reply)
            assert "fenced" in await live.task
            assert await next_one.ask(submit("new")) == [Accepted(job="new")]
            await next_one.loop.close()
            assert "old" not in next_one.state.jobs

    play(story())


def test_cancelled_in_the_middle_of_a_write(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "j"
        with Gated(path) as journal:
            async with started(journal) as live:
                journal.gate.clear()
                first = live.offer(submit("first"))[0]
                await journal.reached()
                waiting = live.offer(submit("waiting"))[0]
                live.task.cancel()
                await asyncio.sleep(0)
                live.task.cancel()  # a second cancel does not help
                await asyncio.sleep(0)
                assert not live.task.done()  # a write is not interrupted
                journal.gate.set()
                with pytest.raises(asyncio.CancelledError):
                    await live.task
                assert await first == Accepted(job="first")
                assert isinstance(await waiting, Unavailable)
                assert dump(restore(journal, PARTITION)[0]) == dump(live.state)
        with Gated(path) as again:
            state, _ = restore(again, PARTITION)
            assert "first" in state.jobs and "waiting" not in state.jobs
            check_all(state)

    play(story())


def test_cancelled_at_random(tmp_path: Path) -> None:
    """Whenever the task is cancelled, what was answered is in the journal, and what is in it was answered."""

    async def story() -> None:
        path = tmp_path / "j"
        done: set[str] = set()
        for epoch in range(20):
            with Gated(path) as journal:
                live = Live(journal)
                if not epoch:
                    await live.ask(configure(max_batch=5, batch_window=0))
                names = [f"j{epoch}-{at}" for at in range(60)]
                slots = live.offer(MarkReady(operator=True), *map(submit, names))[1:]
                for _ in range(epoch):
                    await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0)), *slots[:1]])
                await asyncio.sleep(epoch / 2_000)
                live.task.cancel()
                await asyncio.wait([live.task])
                replies = await asyncio.gather(*slots)
                answered = {name for name, reply in zip(names, replies, strict=True) if isinstance(reply, Accepted)}
                assert all(reply.doubtful is False for reply in replies if isinstance(reply, Unavailable))
                done |= answered
                state, _ = restore(journal, PARTITION)
                check_all(state)
                assert set(state.jobs) == done
                assert dump(state) == dump(live.state)

    play(story())


def test_a_fault_is_raised_and_every_caller_is_answered(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            live.state.nodes.used["cpu"][0] += 5  # break the state
            replies = await live.ask(submit("a"), submit("b"))
            assert all(isinstance(reply, Unavailable) for reply in replies)
            with pytest.raises(InvariantBroken):
                await live.task
            live.state.nodes.used["cpu"][0] -= 5

    play(story())


def test_a_callback_that_raises_leaves_no_caller_waiting(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:

            def broken(cycle: Cycle) -> None:
                raise ValueError("no views today")

            live.loop._publish = broken
            slots = live.offer(*[submit(f"j{at}") for at in range(150)])
            replies = await asyncio.gather(*slots)
            assert [reply.doubtful for reply in replies] == [True] * 100 + [False] * 50  # type: ignore[union-attr]
            with pytest.raises(ValueError, match="no views"):
                await live.task

    play(story())


def test_closing_does_what_was_taken(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal, max_batch=10) as live:
            slots = live.offer(*[submit(f"j{at}") for at in range(95)])
            closing = asyncio.create_task(live.loop.close())
            await asyncio.sleep(0)
            late = live.loop.inbox.offer(submit("late"))
            assert isinstance(await late, Unavailable)
            await closing
            assert [await slot for slot in slots] == [Accepted(job=f"j{at}") for at in range(95)]
            assert await live.task == ""
            await live.loop.close()  # again is not an error

    play(story())


def test_closed_before_it_ran(journal: Gated) -> None:
    async def story() -> None:
        live = Live(journal)
        slot = live.offer(configure())[0]
        await live.loop.close()
        assert isinstance(await slot, Unavailable)
        assert await live.task == ""

    play(story())


def test_metrics_follow_the_loop(journal: Gated) -> None:
    async def story() -> None:
        async with started(journal) as live:
            metrics = Metrics()
            metrics.began(live.state)
            live.loop.writer._observers = [metrics]
            records, cycles = live.records, len(live.cycles)
            for at in range(3):
                await live.ask(submit(f"j{at}"), submit(f"k{at}"))
                labels = {"partition": PARTITION, "result": "inserted"}
                # A caller with an answer finds it counted.
                assert metrics.registry.get_sample_value("fairlead_upserts_total", labels) == 2 * at + 2
            await live.loop.close()
            labels = {"partition": PARTITION}
            found = {
                name: metrics.registry.get_sample_value(f"fairlead_{name}", labels)
                for name in ("batch_size_sum", "batch_size_count", "journal_append_seconds_count")
            }
            assert list(found.values()) == [6, len(live.cycles) - cycles, live.records - records]

    play(story())
