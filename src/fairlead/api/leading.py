"""Starts and stops leading partitions.

If a writer stops, its seat is marked as broken. The reconcile loop then ends the seat and leads the stream anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from fairlead.api.plane import CLOSING, FIRST_PAUSE, LONGEST_PAUSE, Plane, Seat
from fairlead.api.service import PartitionService
from fairlead.core.commands import Configure, Rejected
from fairlead.core.cycle import Cycle
from fairlead.journal.base import Held, JournalError, PolicyMissing, TooNew
from fairlead.journal.codec import CLUSTER_STREAM, restore_cluster, stream_of
from fairlead.journal.room import NoRoom
from fairlead.writer.clock import Clock, cycle_clock
from fairlead.writer.loop import WriterThread
from fairlead.writer.writer import Stopped, Writer

STOPPED = "the journal failed and the server is recovering; its log says why"
NO_ROOM = "the server's disk is full; the server recovers when there is space"
GIVEN = 1.0
"""Seconds for which a server does not take back a partition that it gave up."""
UNABLE = (PolicyMissing, TooNew)
"""Problems of this installation that another server may not have."""


class Leading:
    """Leads partitions of a cluster."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Partition → its live loop."""
        self.retry: dict[str, tuple[float, float]] = {}
        """Stream → when to try leading it again, and the pause before that."""

    def seat_for(self, stream: str) -> Seat:
        """Return the seat of a stream that this server leads or will lead. Each stream has its own seat."""
        if stream not in self._plane.seats:
            self._plane.seats[stream] = Seat(self._plane.new_thread())
        return self._plane.seats[stream]

    def reading_seat(self) -> Seat:
        if not self._plane.apart:
            return self.seat_for(CLUSTER_STREAM)
        if self._plane.reader is None:
            self._plane.reader = Seat(self._plane.new_thread())
        return self._plane.reader

    def begin(self, stream: str, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` on a stream in the background, unless other work on that stream is in progress."""
        if stream in self._plane.at_work or self._plane.problem == CLOSING:
            work.close()
            return

        async def do() -> None:
            try:
                await work
            except Exception as problem:
                if not self._plane.started:
                    raise
                self._plane.note(f"{stream}: {problem!r}")
            finally:
                del self._plane.at_work[stream]

        self._plane.at_work[stream] = asyncio.create_task(do())

    def may_try(self, stream: str) -> bool:
        return self.retry.get(stream, (0.0, 0.0))[0] <= self._plane.steady()

    async def lead(self, name: str) -> None:
        """Take over a partition and serve it. Remove it if it is no longer in the configuration."""
        stream, configured = stream_of(name), self._plane.configured
        seat = self.seat_for(stream)
        config = dict(configured.partitions).get(name)

        def take_over() -> tuple[Writer, Clock] | None:
            journal = seat.opened(self._plane.open_journal)
            writer = Writer(journal, name, self._plane.observers)
            clock = cycle_clock(writer.partition.now, self._plane.wall, lambda: int(self._plane.steady() * 1e9))
            if config is None:
                if name in dict(restore_cluster(journal)[0].partitions):
                    raise Stopped(f"partition {name} was just added by another server")
                # No agent is connected yet: agents of removed partitions are dismissed when they connect; see
                # `removed`.
                writer.remove(clock())
                journal.drop(stream)
                return None
            if writer.partition.config_version < configured.version:
                writer.cycle([Configure(config=config, version=configured.version, operator=True)], clock())
            self._plane.on_lead(name)
            return writer, clock

        try:
            led = await seat.thread.alone(take_over)
            if self._plane.seats.get(stream) is not seat or seat.cause or self._plane.problem == CLOSING:
                raise Stopped(seat.cause or CLOSING)
        except Held:
            await self.end(seat)
        except Exception as problem:
            self.fail(stream, seat, problem)
            if not self._plane.started:
                raise
        else:
            seat.led = stream
            self.succeeded(stream)
            if led is not None:
                self._serve(*led, seat.thread)
            else:
                await self._leave(stream)

    def _serve(self, writer: Writer, clock: Clock, thread: WriterThread) -> None:
        service = PartitionService(
            writer, clock, self._plane.steady, thread, self._plane.engine, self._plane.pools, self._plane.after_cycle
        )
        self._plane.served[service.name] = service
        self._plane.followed.pop(service.name, None)
        self._plane.engine.begin(service.name, service)
        self._plane.pools.begin(service.name, service)
        self._tasks[service.name] = asyncio.create_task(self._run(service))
        service.live.look()

    async def _run(self, service: PartitionService) -> None:
        try:
            cause = await service.live.run()
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # an internal error, not a failure of the journal
            cause = f"{fault!r}"
            self._plane.note(f"partition {service.name}: {fault!r}")
        seat = self._plane.seats.get(stream_of(service.name))
        if cause and seat is not None:
            self.break_seat(seat, cause)

    async def obey_next(self, name: str, user: str) -> Rejected | None:
        """Let a partition adopt the configuration, after other work on its stream; return its refusal.

        Returns None if the writer stops meanwhile: the next writer adopts the configuration.
        """
        stream, refusals = stream_of(name), list[Rejected | None]()

        async def obey() -> None:
            refusals.append(await self.obey(name, user))

        while (before := self._plane.at_work.get(stream)) is not None:
            await asyncio.wait([before])
        self.begin(stream, obey())
        if (begun := self._plane.at_work.get(stream)) is not None:
            await asyncio.wait([begun])
        return refusals[0] if refusals else None

    async def obey(self, name: str, user: str = "") -> Rejected | None:
        """Let a partition that this server leads adopt the configuration; return its refusal. Runs within `begin`."""
        service, version = self._plane.served.get(name), self._plane.configured.version
        config = dict(self._plane.configured.partitions).get(name)
        if service is None or service.partition.config_version >= version:
            return None
        if config is None:
            await self._remove(name)
            return None
        answer = await service.settle(Configure(config=config, version=version, user=user, operator=True))
        if isinstance(answer, Rejected):
            self._plane.note(f"partition {name} does not follow configuration {version} yet: {answer.problem}")
            field = f"partitions.{name}.{answer.field}"
            return Rejected(field, answer.problem, answer.code)
        return None

    def fail(self, stream: str, seat: Seat, problem: BaseException) -> None:
        """Record that a stream could not be led. It is tried again after a pause."""
        if self._plane.apart and isinstance(problem, UNABLE):
            self._plane.able = False  # let the other servers lead
        seat.led = stream
        self.break_seat(seat, str(problem) or repr(problem), isinstance(problem, NoRoom))

    def succeeded(self, stream: str) -> None:
        self.retry.pop(stream, None)
        if self._plane.problems.pop(stream, ""):
            self._plane.note("the control plane works again")

    def break_seat(self, seat: Seat, cause: str, no_room: bool = False) -> None:
        """Mark a seat as broken, because its journal or writer failed. The reconcile loop ends it."""
        if not seat.cause:
            self._plane.note(f"the writer stopped: {cause}")
        seat.cause = seat.cause or cause
        if seat.led:
            _, before = self.retry.get(seat.led, (0.0, FIRST_PAUSE / 2))
            pause = min(2 * before, LONGEST_PAUSE)
            self.retry[seat.led] = (self._plane.steady() + pause, pause)
            self._plane.problems[seat.led] = NO_ROOM if no_room else STOPPED
        self._plane.woken.set()

    async def resign(self, name: str) -> None:
        """Give up a partition, so that another server leads it."""
        seat = self._plane.seats.get(stream_of(name))
        if seat is not None:
            self._plane.note(f"partition {name} is given to another server")
            self.retry[stream_of(name)] = (self._plane.steady() + GIVEN, FIRST_PAUSE)
            await self.end(seat)

    async def _remove(self, name: str) -> None:
        """Remove a partition that is no longer in the configuration. Its agents get the effects of its last cycle."""
        service, stream = self._plane.served[name], stream_of(name)
        seat = self._plane.seats[stream]

        def send(decided: Cycle) -> None:
            service.publish(decided)
            service.dispatch(decided.effects)

        def drop() -> None:
            assert seat.journal is not None
            seat.journal.drop(stream)

        await seat.thread.alone(lambda: service.writer.remove(service.now), send)
        await self._close_service(name)
        try:
            await seat.thread.alone(drop)
        except JournalError as problem:
            return self.break_seat(seat, f"the journal of partition {name} was not dropped: {problem}")
        await self._leave(stream)

    async def _leave(self, stream: str) -> None:
        """Forget a stream that was dropped."""
        self._plane.found = [other for other in self._plane.found if other != stream]
        if (seat := self._plane.seats.get(stream)) is not None:  # else it has ended meanwhile
            await self.end(seat)

    async def end(self, seat: Seat) -> None:
        """Stop leading through a seat, and release its lease."""
        if seat.ended:
            return
        seat.ended = True
        for stream in [stream for stream, other in self._plane.seats.items() if other is seat]:
            del self._plane.seats[stream]
        for name in [name for name in self._plane.served if stream_of(name) == seat.led]:
            await self._close_service(name)
        if seat.led == CLUSTER_STREAM:
            self._plane.configuration = None
        await self.close_seat(seat)

    async def _close_service(self, name: str) -> None:
        service = self._plane.served.pop(name, None)
        if service is None:
            return
        running = self._tasks.pop(name)
        await service.live.close()
        await asyncio.gather(running, return_exceptions=True)
        service.close()
        if name not in self._plane.served:  # else this server leads it again, and has ended the earlier work already
            self._plane.engine.end(name)
            self._plane.pools.end(name)

    async def close_seat(self, seat: Seat | None) -> None:
        if seat is None:
            return

        def close() -> None:
            if seat.journal is not None:
                seat.journal.close()

        await seat.thread.alone(close)
        seat.thread.close()
