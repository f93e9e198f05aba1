"""A provider that runs a user's program: called without a shell with create, destroy or list; JSON in, JSON out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.reader import check_name
from fairlead.core.resources import MEMORY, MILLI, printable
from fairlead.pools.provider import Machine, PoolKind, ProviderError

TAIL = 500
MAX_OUTPUT = 64 << 20
"""Largest answer, in bytes."""

Form = TypeVar("Form", bound=msgspec.Struct)


class Done(msgspec.Struct, frozen=True):
    """The answer to create and destroy: machine → why the call failed for it."""

    failed: dict[str, str] = {}


class Listed(msgspec.Struct, frozen=True):
    machines: tuple[Machine, ...]


class CommandProvider:
    def __init__(self, kind: PoolKind, command: Sequence[str], timeout: float) -> None:
        self._kind = kind
        self._command = tuple(command)
        self._timeout = timeout

    async def create(self, names: Sequence[str]) -> None:
        settings, join = self._kind.settings, self._kind.join
        node = {
            "resources": {name: _units(name, amount) for name, amount in settings.node},
            "labels": dict(settings.labels),
            "taints": list(settings.taints),
        }
        tokens = await asyncio.to_thread(join.invite, self._kind.partition, self._kind.pool, names)
        details = {"node": node, "join": {"url": join.url(), "tokens": tokens}}
        self._check(await self._call("create", Done, names, details))

    async def destroy(self, names: Sequence[str]) -> None:
        self._check(await self._call("destroy", Done, names))

    async def list(self) -> Sequence[Machine]:
        listed = (await self._call("list", Listed)).machines
        try:
            for machine in listed:
                check_name(machine.name, "name")
        except Refused as refusal:
            raise self._error(f"list answered with an invalid machine: {refusal}", unknown=True) from None
        return listed

    async def close(self) -> None:
        pass

    def _check(self, done: Done) -> None:
        if done.failed:
            name, reason = next(iter(done.failed.items()))
            more = f" (and {len(done.failed) - 1} more)" if len(done.failed) > 1 else ""
            raise self._error(f"{name}: {printable(reason, TAIL)}{more}", tuple(done.failed))

    async def _call(
        self, call: str, form: type[Form], names: Sequence[str] = (), details: dict[str, Any] | None = None
    ) -> Form:
        document: dict[str, Any] = {"partition": self._kind.partition, "pool": self._kind.pool}
        if call != "list":
            document["names"] = list(names)
        # Files instead of pipes: processes that the program leaves running may keep pipes open.
        with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            stdin.write(msgspec.json.encode(document | (details or {})))
            stdin.seek(0)
            code = await self._run(call, names, stdin, stdout, stderr)
            if code:
                tail = printable(_end_of(stderr).strip(), TAIL)
                raise self._error(f"{call} ended with code {code}" + (f": {tail}" if tail else ""))
            stdout.seek(0)
            text = stdout.read(MAX_OUTPUT).strip()
        try:
            return msgspec.json.decode(text or b"{}", type=form)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise self._error(
                f"{call} answered in a wrong form ({problem}); docs/pools.md has the form",
                unknown=True,
            ) from None

    async def _run(
        self, call: str, names: Sequence[str], stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
    ) -> int:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, call, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except OSError as problem:
            raise self._error(f"it cannot be run: {problem.strerror}", names) from None
        try:
            async with asyncio.timeout(self._timeout):
                return await process.wait()
        except TimeoutError:
            raise self._error(f"{call} took longer than {self._timeout:g} s", unknown=True) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _error(self, reason: str, names: Sequence[str] = (), unknown: bool = False) -> ProviderError:
        return ProviderError(f"{printable(self._command[0], 100)}: {reason}", names, unknown)


def _units(name: str, amount: int) -> int | float:
    if name == MEMORY:
        return amount
    return amount / MILLI if amount % MILLI else amount // MILLI


def _end_of(file: IO[bytes]) -> str:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 4 * TAIL))
    return file.read().decode(errors="replace")[-TAIL:]
