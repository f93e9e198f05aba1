"""The preview process of a server, which answers questions about the future and the past.

    python -m fairlead.forecast.preview_process JOURNAL HISTORY

With `-` in place of both, they are in the database that FAIRLEAD_DATABASE names. The process reads questions from its
standard input and writes answers to its standard output, each preceded by its length in four bytes. It reads the
journal itself, so the server's writer never waits for it. It exits when its input closes, or after ten minutes without
a question.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from select import select
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from fairlead import policies
from fairlead.core.commands import Submit
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, unpack_spec
from fairlead.forecast import comparison, eta, waits
from fairlead.forecast.moments import past_map, past_queues
from fairlead.forecast.recorded_trace import trace_document
from fairlead.forecast.replica import Follower
from fairlead.forecast.runtimes import Runtimes
from fairlead.history.databases import Tables, tables_at
from fairlead.journal.journal import JournalError
from fairlead.wire import preview
from fairlead.wire.preview import AnyQuestion, Failure
from fairlead.writer.gc_settings import spare_the_collector

SECONDS = 3.0
"""After this number of seconds no new future begins."""


def answer(follower: Follower, question: preview.AnyQuestion) -> msgspec.Struct:
    match question:
        case preview.EtaQuestion():
            return _etas(follower, question)
        case preview.StoryQuestion():
            return preview.Story(since=follower.began, lines=follower.story(question.job, question.number))
        case preview.TraceQuestion():
            return preview.Document(document=trace_document(follower, question.since, question.now))
        case preview.PastMapQuestion():
            return preview.Document(document=past_map(follower, question))
        case preview.PastQueuesQuestion():
            return preview.Document(document=past_queues(follower, question))
        case preview.BillQuestion():
            return preview.Document(document=waits.bill(follower, question))
        case preview.WaitsQuestion():
            return preview.Document(document=waits.waits(follower, question))
    return preview.Document(document=comparison.compare(follower, question))


def workers() -> int:
    return max(1, min(eta.SAMPLES, os.cpu_count() or 1))


def _etas(follower: Follower, question: preview.EtaQuestion) -> preview.Etas:
    past, runtimes = follower.past(question.now)
    submits = [_submit(packed, at) for at, packed in enumerate(question.submissions)]
    wanted = [*question.jobs, *(submit.id for submit in submits)]
    samples = eta.draw_futures(
        follower.state, question.now, runtimes, past, wanted, SECONDS, workers=workers(), first=submits
    )
    refused = samples[0].refused
    specs = {submit.id: submit.spec for submit in submits}
    specs |= {job: follower.state.jobs[job].spec for job in question.jobs if job in follower.state.jobs}
    new = {job for job, spec in specs.items() if not _has_run(runtimes, spec)}
    etas = {job: replace(eta.sum_up(job, samples), new=job in new) for job in wanted}
    return preview.Etas(
        jobs={job: etas[job] for job in question.jobs},
        submissions=[refused.get(submit.id) or etas[submit.id] for submit in submits],
        now=question.now,
        futures=len(samples),
        unknown_running=max(sample.unknown_running for sample in samples),
        recorded_jobs=len(past.jobs),
        ran=bool(runtimes),
    )


def _has_run(runtimes: Runtimes, spec: JobSpec) -> bool:
    return any(runtimes.has_run(spec.user, spec.name, stage.name) for stage in spec.stages)


def _submit(packed: bytes, at: int) -> Submit:
    spec = unpack_spec(packed)
    if spec.manager:
        raise Refused("manager", "its start cannot be foretold; leave it out")
    return Submit(spec=spec, id=f"preview-{at}", user=spec.user, groups=spec.groups, operator=True)


IDLE = 600.0
"""Seconds without a question after which the process ends."""
FOLLOW = 5.0
"""Seconds between two reads of the journal. They keep the state up to date, so that answers come soon."""
NICE = 10
"""The niceness of the process."""
HEAD = 4
_decode = msgspec.msgpack.Decoder(AnyQuestion).decode
_encode = msgspec.msgpack.Encoder().encode


class Process:
    def __init__(self, journal: str, history: Tables) -> None:
        self._journal = journal
        self._history = history
        self._followers: dict[str, Follower] = {}

    def serve(self, source: BinaryIO, target: int) -> None:
        """Answer questions, which come one at a time, until the source closes or is idle for too long."""
        idle = 0.0
        while idle < IDLE:
            if not select([source], [], [], FOLLOW)[0]:
                idle += FOLLOW
                self._follow()
                continue
            idle = 0.0
            size = int.from_bytes(source.read(HEAD))
            payload = source.read(size)
            if not size or len(payload) < size:
                return
            reply = _encode(self._answer(payload))
            _write(target, len(reply).to_bytes(HEAD) + reply)

    def _answer(self, payload: bytes) -> msgspec.Struct:
        question = _decode(payload)
        try:
            follower = self._followers.get(question.partition)
            if follower is None:
                follower = Follower(self._journal, self._history, question.partition)
                follower.catch_up()
                self._followers[question.partition] = follower
                spare_the_collector()
            follower.catch_up()
            return answer(follower, question)
        except Refused as refusal:
            return Failure(problem=refusal.problem, field=refusal.field)
        except (JournalError, OSError, RuntimeError) as problem:
            self._followers.pop(question.partition, None)
            return Failure(problem=str(problem))

    def _follow(self) -> None:
        for name, follower in list(self._followers.items()):
            try:
                follower.catch_up()
            except (JournalError, OSError):
                del self._followers[name]


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m fairlead.forecast.preview_process JOURNAL HISTORY", file=sys.stderr)
        return 2
    os.nice(NICE)
    journal, history = (os.environ.get("FAIRLEAD_DATABASE", place) if place == "-" else place for place in arguments)
    try:
        policies.load()
        Process(journal, tables_at(history)).serve(sys.stdin.buffer, sys.stdout.fileno())
    except (policies.PolicyError, JournalError) as problem:
        print(problem, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        with suppress(OSError):
            os.close(sys.stdout.fileno())
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
