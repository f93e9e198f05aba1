"""Asks the preview process of the server. The process is started at the first question.

Questions about starts that wait at the same time are asked as one, so many users who ask at once wait for one or two
simulations.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from fairlead.journal.locate import is_url
from fairlead.journal.snapshot import DATABASE
from fairlead.wire.preview import AnyQuestion, Document, EtaQuestion, Etas, Failure, Story, Unanswered

HEAD = 4
PATIENCE = 150.0
"""A process that does not answer within this number of seconds is ended."""
MOST_TOGETHER = 5_000
"""No question joins others that ask about this number of jobs."""
GONE = (OSError, RuntimeError, asyncio.IncompleteReadError)
"""Errors at the pipes of a process that has ended; with uvloop, a closed pipe raises a RuntimeError."""
_decode_failure = msgspec.msgpack.Decoder(Failure).decode
Reply = Etas | Story | Document | Failure


class Round:
    """Questions about starts in one partition that wait for the process and are asked as one."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.questions: list[EtaQuestion] = []
        self.reply: asyncio.Task[Reply] | None = None

    def is_full(self) -> bool:
        return sum(len(question.jobs) for question in self.questions) >= MOST_TOGETHER

    def question(self) -> EtaQuestion:
        """Return one question about the jobs of all, at the latest of their times."""
        jobs = dict.fromkeys(job for question in self.questions for job in question.jobs)
        latest = max(self.questions, key=lambda question: (question.seq, question.now))
        return replace(latest, jobs=tuple(jobs))


class Previewer:
    """Asks the preview process, one question at a time. The child exits when its stdin closes."""

    def __init__(self, journal: str | os.PathLike[str], history: str | os.PathLike[str]) -> None:
        places = [os.fspath(journal), os.fspath(history)]
        self._environment = dict(os.environ)
        if is_url(places[0]):  # other users can read the arguments of a process, and the address may have a password
            self._environment[DATABASE] = places[0]
            places = ["-", "-"]
        self._command = [sys.executable, "-P", "-m", "fairlead.forecast.preview_process", *places]
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._rounds: dict[str, Round] = {}
        """Partition → the round that questions about starts join."""
        self._closed = False

    async def ask(self, question: AnyQuestion) -> Reply:
        if isinstance(question, EtaQuestion) and not question.submissions:
            return await self._join(question)
        async with self._turn:
            return await self._ask(question)

    async def close(self) -> None:
        self._closed = True
        self._kill()  # ends the question that is being answered
        async with self._turn:
            await self._end()

    async def _join(self, question: EtaQuestion) -> Reply:
        """Ask a question together with all others that wait. If the caller is cancelled, the others go on."""
        joined = self._rounds.get(question.partition)
        if joined is None or joined.is_full():
            joined = self._rounds[question.partition] = Round(question.partition)
        joined.questions.append(question)
        if joined.reply is None:
            joined.reply = asyncio.create_task(self._ask_round(joined))
        try:
            reply = await asyncio.shield(joined.reply)
        except asyncio.CancelledError:
            joined.questions.remove(question)
            if not joined.questions:
                joined.reply.cancel()
                self._close_round(joined)
            raise
        if isinstance(reply, Etas):
            return replace(reply, jobs={job: reply.jobs[job] for job in question.jobs})
        return reply

    async def _ask_round(self, joined: Round) -> Reply:
        async with self._turn:
            self._close_round(joined)
            return await self._ask(joined.question())

    def _close_round(self, joined: Round) -> None:
        if self._rounds.get(joined.partition) is joined:
            del self._rounds[joined.partition]

    async def _ask(self, question: AnyQuestion) -> Reply:
        try:
            payload = msgspec.msgpack.encode(question)
        except OverflowError:
            return Failure(problem="a number has more than 64 bits; write a smaller one")
        if self._process is not None:
            with suppress(*GONE):  # the process has exited, because it was idle
                return await self._answer(self._process, question, payload)
        if not self._closed:
            await self._start()
        if self._closed or self._process is None:
            await self._end()
            raise Unanswered("the server is closing")
        try:
            return await self._answer(self._process, question, payload)
        except GONE as problem:
            raise Unanswered("the process that looks into the future ended") from problem

    async def _answer(self, process: Process, question: AnyQuestion, payload: bytes) -> Reply:
        try:
            async with asyncio.timeout(PATIENCE):
                return _read(question, await self._exchange(process, payload))
        except TimeoutError as problem:
            await self._end()
            raise Unanswered(f"there was no answer within {PATIENCE:g} s") from problem
        except BaseException:
            await self._end()  # a late answer would be taken for the answer to the next question
            raise

    async def _start(self) -> None:
        """Start the process. It is kept for the next question if the caller is cancelled meanwhile."""

        async def start() -> None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._environment,
            )

        starting = asyncio.create_task(start())
        try:
            await asyncio.shield(starting)
        except OSError as problem:
            raise Unanswered(f"the process that looks into the future cannot be started: {problem}") from problem
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            raise

    async def _exchange(self, process: Process, payload: bytes) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(len(payload).to_bytes(HEAD) + payload)
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(HEAD))
        return await process.stdout.readexactly(size)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _end(self) -> None:
        """End the process, and close all of its pipes before the loop is closed."""
        self._kill()
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError, RuntimeError):
            process.stdin.close()
            await process.stdin.wait_closed()
        with suppress(OSError, RuntimeError):
            await process.stdout.read()
        await process.wait()


def _read(question: AnyQuestion, payload: bytes) -> Reply:
    try:
        failure = _decode_failure(payload)
    except msgspec.ValidationError:
        kind = {"eta": Etas, "story": Story}.get(question.__struct_config__.tag, Document)  # type: ignore[arg-type]
        return msgspec.msgpack.decode(payload, type=kind)  # type: ignore[no-any-return]
    return failure
