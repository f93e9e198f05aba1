"""The preview process of a server, which answers questions about the future and the past.

    python -m fairlead.forecast.process JOURNAL HISTORY

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

from fairlead import policies
from fairlead.core.errors import Refused
from fairlead.forecast.replica import Follower
from fairlead.forecast.replies import answer
from fairlead.history.tables import Tables, tables_at
from fairlead.journal.journal import JournalError
from fairlead.wire.preview import AnyQuestion, Failure
from fairlead.writer.gc_settings import spare_the_collector

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
        print("usage: python -m fairlead.forecast.process JOURNAL HISTORY", file=sys.stderr)
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
