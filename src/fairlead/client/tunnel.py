"""The near end of a tunnel to a task: it connects through the server, connects again after a break, and carries the
standard streams of a process, or connections to ports.

`wire/tunnel_frames.py` describes tunnels. All of this runs in an asyncio loop; files are read and written in
threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle
from queue import SimpleQueue
from ssl import SSLContext
from subprocess import CompletedProcess

from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from fairlead.client.calls import (
    Call,
    Caller,
    Problem,
    ServerAddress,
    addresses_of,
    problem_of,
    tls_context,
    unreachable,
)
from fairlead.client.endpoint import Endpoint
from fairlead.wire import operations as op
from fairlead.wire.tunnel_frames import (
    CLOSE,
    CODE,
    CONNECTIONS,
    DATA,
    END,
    ERRORS,
    EXIT,
    NUMBER,
    OPEN,
    PAIR,
    PIECE,
    SIGNAL,
    SIZE,
    STANDARD,
    Broken,
    Tunnel,
)

PATIENCE = 60.0
"""Seconds for which a lost connection is opened again. Output waits for as long at the other end."""
STARTING = 10.0
"""Seconds for which a first connection is tried while its node is not connected."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
BACKGROUND = 0.3
"""Seconds between two looks whether this process is in the foreground of its terminal."""
MESSAGE = 4 * PIECE
"""Bytes that are sent together."""
QUIET = 20.0
"""Seconds after which a silent connection is checked, and after which it counts as dead without an answer."""
AGAIN = frozenset((429, 502, 503, 504))

Handle = Callable[[int, int, bytes], None]
"""Takes a frame: kind, channel, content."""


class NearEnd:
    """The near end of one tunnel."""

    def __init__(
        self,
        caller: Caller,
        wanted: op.OpenTunnel,
        handle: Handle,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`handle` gets the frames that arrive. `told` is called with what a user should know about the connection."""
        self._endpoint: Endpoint = caller._endpoint
        self._partition = caller.partition
        self._wanted = wanted
        self._handle = handle
        self._told = told
        self._tunnel = Tunnel()
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when frames have arrived, so that there may be room."""
        self.over = False
        """Set when nothing more is expected: the tunnel ends once the other end has everything."""
        self._left = False
        self._lost_at: float | None = None
        self._warned = False
        """True once the user was told that the connection is lost."""
        self._pause = FIRST_PAUSE
        self.attempt = 0

    def send(self, kind: int, channel: int, content: bytes = b"") -> None:
        """Send a frame."""
        self._tunnel.send(kind, channel, content)
        self._wake.set()

    def use(self, channel: int, size: int) -> None:
        """Note that received bytes were used."""
        self._tunnel.use(channel, size)
        self._wake.set()

    def forget(self, channel: int) -> None:
        self._tunnel.forget(channel)

    async def room(self, channel: int) -> int:
        """Wait until bytes of a channel may be sent, and return how many."""
        while not (room := self._tunnel.room(channel)):
            self._moved.clear()
            await self._moved.wait()
        return min(room, PIECE)

    def end(self) -> None:
        """End the tunnel when the other end has everything."""
        self.over = True
        self._wake.set()

    def leave(self) -> None:
        """End the tunnel at once. At the other end, a task continues, and a process in a terminal gets SIGHUP."""
        self.send(CLOSE, 0)
        self._left = True

    async def run(self) -> None:
        """Carry frames until the tunnel ends. Raise a `Problem` if it cannot be opened or cannot go on."""
        addresses, trust = addresses_of(self._endpoint), tls_context(self._endpoint)
        begun = time.monotonic()
        for tries, address in enumerate(cycle(addresses), 1):
            if self._is_done():
                return
            problem = await self._carry(address, trust)
            if self._is_done():
                return
            now = time.monotonic()
            if self._tunnel.met:
                if self._lost_at is None:
                    self._lost_at, self._pause = now, FIRST_PAUSE
                is_over = now - self._lost_at > PATIENCE
            else:
                answered = isinstance(problem, Problem)
                is_over = now - begun > STARTING or (tries >= len(addresses) and not answered)
            if is_over:
                raise problem if isinstance(problem, Problem) else unreachable(self._endpoint.url, problem)
            if self._lost_at is not None and now - self._lost_at > 1 and not self._warned:
                self._told("the connection is lost; trying again")
                self._warned = True
            await asyncio.sleep(self._pause)
            self._pause = min(LONGEST_PAUSE, 1.5 * self._pause)

    async def _carry(self, address: ServerAddress, trust: SSLContext | None) -> Exception:
        """Connect, and carry frames while the connection lasts. Return why it ended, if another one may be opened."""
        scheme = "wss" if address.secure else "ws"
        host = f"[{address.host}]" if ":" in address.host else address.host
        wanted = replace(self._wanted, new=not self._tunnel.met, attempt=self.attempt or self._wanted.attempt)
        try:
            async with connect(
                f"{scheme}://{host}:{address.port}{address.path}{Call(wanted, self._partition).target}",
                additional_headers={"authorization": f"Bearer {self._endpoint.token}"},
                ssl=trust,
                proxy=None,
                compression=None,
                max_size=None,
                max_queue=8,
                ping_interval=QUIET,
                ping_timeout=QUIET,
                user_agent_header=None,
            ) as connection:
                if self._warned:
                    self._told("connected again")
                self._lost_at, self._pause, self._warned = None, FIRST_PAUSE, False
                if connection.response is not None:
                    self.attempt = int(connection.response.headers.get("fairlead-attempt", 0))
                await self._converse(connection)
                if connection.close_code == 4401:
                    raise Problem("the token was revoked or has expired", 401, "unauthenticated")
            return ConnectionError("the connection was closed")
        except InvalidStatus as refusal:
            problem = problem_of(refusal.response.status_code, bytes(refusal.response.body or b""))
            if problem.status not in AGAIN:
                raise problem from None
            return problem
        except (OSError, WebSocketException) as fault:
            return fault
        except Broken as broken:
            raise Problem(f"the connection was lost, and cannot be resumed: {broken}", code="gone") from None

    def _is_done(self) -> bool:
        return self._left or (self.over and self._tunnel.settled)

    async def _converse(self, connection: ClientConnection) -> None:
        self._tunnel.connect()
        self._wake.set()
        sending = asyncio.create_task(self._send(connection))
        try:
            async for message in connection:
                for kind, channel, content in self._tunnel.receive(message if isinstance(message, bytes) else b""):
                    if kind == CLOSE and channel == 0:
                        raise Problem(content.decode("utf-8", "replace"), 409, "closed")
                    self._handle(kind, channel, content)
                self._moved.set()
                self._wake.set()
                if self.over and self._tunnel.settled and not self._tunnel.unsent:
                    return
        except ConnectionClosed:
            pass
        finally:
            self._tunnel.disconnect()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, connection: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._wake.wait()
                self._wake.clear()
                while data := self._tunnel.take(MESSAGE):
                    await connection.send(data)
                if self._left or (self.over and self._tunnel.settled and self._tunnel.greeted):
                    await connection.close()
                    return


class Streams:
    """Carries the standard streams of a process, or its terminal, to and from files."""

    def __init__(
        self,
        caller: Caller,
        wanted: op.OpenTunnel,
        stdin: int | None,
        outputs: tuple[int, int],
        told: Callable[[str], None] = lambda text: None,
        changed: Callable[[bytes], bytes | None] = lambda data: data,
    ) -> None:
        """Take the descriptors; without `stdin` the input of the process ends at once.

        `changed` is called with input, and returns what to send; None ends the tunnel.
        """
        self._stdin = stdin
        self._near = NearEnd(caller, wanted, self._take, told)
        self._writers = {channel: Writer(fd) for channel, fd in zip((STANDARD, ERRORS), outputs, strict=True)}
        self._changed = changed
        self.code: int | None = None
        """The exit code of the process."""
        self.why = ""
        self.left = False
        """True if the user left the tunnel."""
        self._no_reader = asyncio.Event()

    def resize(self, rows: int, columns: int) -> None:
        """Tell the process the size of the terminal."""
        self._near.send(SIZE, STANDARD, PAIR.pack(rows, columns))

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._near.send(SIGNAL, STANDARD, NUMBER.pack(number))

    @property
    def attempt(self) -> int:
        return self._near.attempt

    async def run(self) -> None:
        """Carry the streams until the process has ended and all of its output was written."""
        loop = asyncio.get_running_loop()
        for channel, writer in self._writers.items():
            writer.start(loop, lambda size, channel=channel: self._near.use(channel, size))  # type: ignore[misc]
        feeding = asyncio.create_task(self._feed())
        try:
            await self._near.run()
        finally:
            feeding.cancel()
            for writer in self._writers.values():
                await asyncio.to_thread(writer.finish)

    def _take(self, kind: int, channel: int, content: bytes) -> None:
        if kind == DATA and channel in self._writers:
            self._writers[channel].write(content)
        elif kind == CLOSE and channel == STANDARD:
            self._no_reader.set()
        elif kind == EXIT:
            self.code = CODE.unpack(content[:4])[0]
            self.why = content[4:].decode("utf-8", "replace")
            self._near.end()

    async def _feed(self) -> None:
        if self._stdin is None:
            self._near.send(END, STANDARD)
            return
        reader = Reader(self._stdin)
        while True:
            data = await reader.read(await self._near.room(STANDARD))
            if self._no_reader.is_set():
                return  # the process reads no more
            if not data:
                self._near.send(END, STANDARD)
                return
            changed = self._changed(data)
            if changed is None:
                self.left = True
                self._near.leave()
                return
            if changed:
                self._near.send(DATA, STANDARD, changed)


class Writer:
    """Writes output to a file in a thread, so that a slow reader holds up nothing else."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop, used: Callable[[int], None]) -> None:
        """Begin to write. `used` is called in the loop with the number of bytes that were written."""

        def work() -> None:
            broken = False
            while (data := self._queue.get()) is not None:
                view = memoryview(data)
                while view and not broken:
                    try:
                        view = view[os.write(self._fd, view) :]
                    except OSError:
                        broken = True  # the reader of our output has gone
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(used, len(data))

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        self._queue.put(data)

    def finish(self) -> None:
        """Wait until everything is written."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()


class Reader:
    """Reads a file in a thread that nothing waits for: a read may take forever."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._wanted: SimpleQueue[tuple[int, asyncio.Future[bytes]]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    async def read(self, most: int) -> bytes:
        """Return the next bytes; none at the end."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._wanted.put((most, answer))
        return await answer

    def _work(self) -> None:
        data = b"?"
        while data:
            most, answer = self._wanted.get()
            while _in_background(self._fd):
                time.sleep(BACKGROUND)
            try:
                data = os.read(self._fd, most)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(_finish, answer, data)
            except RuntimeError:
                return  # the loop has ended


def _in_background(fd: int) -> bool:
    """True if this process would be stopped if it read its terminal now, because it is in the background."""
    try:
        return os.isatty(fd) and os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False


def _finish(answer: asyncio.Future[bytes], data: bytes) -> None:
    if not answer.done():
        answer.set_result(data)


class Ports:
    """Carries connections to local ports to ports of a task's node."""

    def __init__(self, caller: Caller, wanted: op.OpenTunnel, told: Callable[[str], None] = lambda text: None) -> None:
        self._told = told
        self._near = NearEnd(caller, wanted, self._take, told)
        self._next = CONNECTIONS
        self._open: dict[int, Connection] = {}
        self._listeners: list[asyncio.Server] = []

    async def listen(self, host: str, local: int, port: int) -> int:
        """Accept connections at a local port, 0 for any, and carry them to `port`. Return the local port."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(reader, writer, port)

        server = await asyncio.start_server(accept, host, local, limit=PIECE)
        self._listeners.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    async def run(self) -> None:
        """Carry connections until cancelled. Raise a `Problem` if the tunnel cannot be opened or cannot go on."""
        try:
            await self._near.run()
        finally:
            for listener in self._listeners:
                listener.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        channel = self._next
        self._next += 1
        connection = self._open[channel] = Connection(writer)
        self._near.send(OPEN, channel, PAIR.pack(port, 0))
        writing = asyncio.create_task(connection.write(lambda size: self._near.use(channel, size)))
        try:
            data = b"?"
            while data:
                data = await reader.read(await self._near.room(channel))
                if channel not in self._open:
                    break
                self._near.send(DATA if data else END, channel, data)
            await writing
        except (OSError, asyncio.CancelledError):
            if channel in self._open:
                self._near.send(CLOSE, channel)
        finally:
            writing.cancel()
            self._open.pop(channel, None)
            self._near.forget(channel)
            writer.close()

    def _take(self, kind: int, channel: int, content: bytes) -> None:
        connection = self._open.get(channel)
        if connection is None:
            return
        if kind == DATA:
            connection.queue.put_nowait(content)
        elif kind in (END, CLOSE):
            if kind == CLOSE:
                connection.closed = True
                del self._open[channel]
            if content:
                self._told(f"port: {content.decode('utf-8', 'replace')}")
            connection.queue.put_nowait(None)


class Connection:
    """A connection to a local port."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = False
        """True once the other end has closed it."""

    async def write(self, used: Callable[[int], None]) -> None:
        """Write what arrives until it ends."""
        while (data := await self.queue.get()) is not None:
            self._writer.write(data)
            await self._writer.drain()
            used(len(data))
        if self.closed:
            self._writer.close()
        elif self._writer.can_write_eof():
            self._writer.write_eof()


def capture(caller: Caller, wanted: op.OpenTunnel, given: bytes) -> CompletedProcess[bytes]:
    """Give input to a process, and return its output and exit code when it has ended."""
    parts: dict[int, list[bytes]] = {STANDARD: [], ERRORS: []}
    ends: list[int] = []

    def take(kind: int, channel: int, content: bytes) -> None:
        if kind == DATA and channel in parts:
            parts[channel].append(content)
            near.use(channel, len(content))
        elif kind == EXIT:
            ends.append(CODE.unpack(content[:4])[0])
            near.end()

    async def feed() -> None:
        at = 0
        while at < len(given):
            piece = given[at : at + await near.room(STANDARD)]
            near.send(DATA, STANDARD, piece)
            at += len(piece)
        near.send(END, STANDARD)

    async def carry() -> None:
        feeding = asyncio.create_task(feed())
        try:
            await near.run()
        finally:
            feeding.cancel()

    near = NearEnd(caller, wanted, take)
    asyncio.run(carry())
    return CompletedProcess(wanted.command, ends[0] if ends else -1, b"".join(parts[STANDARD]), b"".join(parts[ERRORS]))


@contextmanager
def forwarding(caller: Caller, wanted: op.OpenTunnel, port: int, local: int) -> Iterator[int]:
    """Carry connections to a local port, 0 for any, to a port of a task's node, in a thread. Yield the local port."""
    begun: Future[tuple[int, Callable[[], object]]] = Future()

    async def carry() -> None:
        ports = Ports(caller, wanted)
        number = await ports.listen("127.0.0.1", local, port)
        work = asyncio.create_task(ports.run())
        loop = asyncio.get_running_loop()
        begun.set_result((number, lambda: loop.call_soon_threadsafe(work.cancel)))
        with suppress(asyncio.CancelledError):
            await work

    with ThreadPoolExecutor(1, "forward") as threads:
        done = threads.submit(lambda: asyncio.run(carry()))

        def failed(ended: Future[None]) -> None:
            if not begun.done():
                begun.set_exception(ended.exception() or OSError("the connection ended"))

        done.add_done_callback(failed)
        number, end = begun.result()
        try:
            yield number
        finally:
            with suppress(RuntimeError):  # the loop has ended
                end()
            done.result()
