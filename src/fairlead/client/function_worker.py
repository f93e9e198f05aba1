"""The program that runs the calls of an executor in a task, and the language that both speak.

An executor sends this file's text to its tasks, so it needs the standard library only. A worker listens at a port of
its node, and its first line of output names the port. The client connects through a tunnel. Both prove that they have
the executor's key, and seal each message, before anything is unpickled.

The worker has two processes. This one talks with the client and unpickles nothing; the other one runs calls, one at a
time. A call that ends its process, is cancelled or takes too long ends only the second one, which is then made anew.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

KEY = "FAIRLEAD_CALL_KEY"
"""The variable that holds the key in a task."""
LISTENS = b"fairlead worker: port "
"""The beginning of the first line of output; the number of the port follows."""

CALL, CANCEL, RECALL, SEEN, EXPECT, LEAVE = range(6)
"""Kinds of messages to a worker.

`CALL` has a time limit and a pickled call. `CANCEL` ends a call, also while it runs; `RECALL` takes it back unless it
runs. `SEEN` says that a result arrived. `EXPECT` comes first on a connection, with the ids of the calls that the client
gave to this worker. `LEAVE` ends the worker.
"""
RESULT, ERROR, DIED, BACK, END = range(10, 15)
"""Kinds of messages from a worker.

`RESULT` and `ERROR` have a pickled value. `DIED` says in text how the process of the call ended. `BACK` returns a call
that did not run, or that is unknown here. `END` says that this worker ends; none of its open calls ran.
"""
HEAD = struct.Struct("<BQQ")
"""Kind, id of the call, length of the content."""
LIMIT = struct.Struct("<d")
"""Seconds that a call may take; 0 for no limit."""
NUMBER = struct.Struct("<Q")
SIZE = 32
"""Bytes of a nonce, a proof and a seal."""
SEND = 1 << 18
HOLD, MAX_HOLD = 120.0, 3600.0
"""Seconds for which results are kept that the client has not seen, beside the seconds that they took; and at most."""
MAX_STRANGERS = 8
FULL = 1 << 28
"""Bytes on their way to the client above which no further call begins."""


class Forged(Exception):
    """Raised if the other end does not have the key, or a message was changed on its way. It is not unpickled."""


class Link:
    """One end of a connection between a client and a worker. It does no I/O."""

    def __init__(self, key: bytes, is_worker: bool) -> None:
        self._key = key
        self._is_worker = is_worker
        self._nonce = os.urandom(SIZE)
        self._rest = bytearray()
        self._session = b""
        self._counts = {True: 0, False: 0}
        """Messages from the worker, and from the client."""
        self.greeting = self._nonce
        """The first bytes to send."""
        self.proven = False
        """True once the other end has proven that it has the key."""

    def greet(self) -> bytes:
        """Return the proof to send, once the other end's greeting is here; until then nothing."""
        if self._session or len(self._rest) < SIZE:
            return b""
        other = bytes(self._rest[:SIZE])
        del self._rest[:SIZE]
        self._session = (other + self._nonce) if self._is_worker else (self._nonce + other)
        return self._proof(self._is_worker)

    def _proof(self, of_worker: bool) -> bytes:
        return hmac.digest(self._key, b"worker" * of_worker + self._session, "sha256")

    def feed(self, data: bytes) -> None:
        self._rest += data

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the messages that are complete: kind, id of the call, content."""
        while self._is_proven() and len(self._rest) >= HEAD.size:
            kind, call, size = HEAD.unpack_from(self._rest)
            whole = HEAD.size + size + SIZE
            if len(self._rest) < whole:
                return
            with memoryview(self._rest) as view:
                content, seal = bytes(view[HEAD.size : whole - SIZE]), bytes(view[whole - SIZE : whole])
                head = bytes(view[: HEAD.size])
            del self._rest[:whole]
            if not hmac.compare_digest(seal, self._seal(not self._is_worker, head, content)):
                raise Forged("a message does not carry the seal of the executor, so it was changed or replaced")
            yield kind, call, content

    def _is_proven(self) -> bool:
        """True if the other end has proven that it has the key. Its proof is checked here."""
        if not self.proven and self._session and len(self._rest) >= SIZE:
            if not hmac.compare_digest(self._rest[:SIZE], self._proof(not self._is_worker)):
                raise Forged("the other end of the connection does not have the key of the executor")
            del self._rest[:SIZE]
            self._session = hmac.digest(self._key, b"session" + self._session, "sha256")
            self.proven = True
        return self.proven

    def message(self, kind: int, call: int = 0, content: bytes = b"") -> list[bytes]:
        """Return the parts of a message to send; a large content is not copied."""
        head = HEAD.pack(kind, call, len(content))
        seal = self._seal(self._is_worker, head, content)
        return [head + content + seal] if len(content) < SEND else [head, content, seal]

    def _seal(self, of_worker: bool, head: bytes, content: bytes) -> bytes:
        self._counts[of_worker] += 1
        seal = hmac.new(self._session, b"%d %d " % (of_worker, self._counts[of_worker]), "sha256")
        seal.update(head)
        seal.update(content)
        return seal.digest()


class Runner:
    """The process that runs calls."""

    def __init__(self, inherited: list[int]) -> None:
        """Fork it. It closes the descriptors that it inherits."""
        self.socket, theirs = socket.socketpair()
        self._got = bytearray()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            for fd in (*inherited, self.socket.fileno()):
                os.close(fd)
            _run_calls(theirs)
        theirs.close()

    def begin(self, call: int, content: bytes) -> None:
        self.socket.sendall(HEAD.pack(CALL, call, len(content)))
        self.socket.sendall(content)

    def receive(self) -> tuple[int, bytes] | None:
        """Read a part of an answer. Return its kind and content when it is complete; raise `EOFError` at the end."""
        data = self.socket.recv(SEND)
        if not data:
            raise EOFError
        self._got += data
        if len(self._got) < HEAD.size:
            return None
        kind, _, size = HEAD.unpack_from(self._got)
        if len(self._got) < HEAD.size + size:
            return None
        answer = kind, bytes(memoryview(self._got)[HEAD.size :])
        self._got = bytearray()
        return answer

    def end(self) -> str:
        """End the process and those that it started. Return how it ended, in words."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)
        self.socket.close()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def _run_calls(pipe: socket.socket) -> NoReturn:
    """Run the calls that arrive, until no more come."""
    code = 0
    try:
        with contextlib.suppress(ImportError):  # it takes a while, so it is done before there is a call
            import cloudpickle  # type: ignore[import-untyped]  # noqa: F401
        calls = pipe.makefile("rb")
        while head := calls.read(HEAD.size):
            _, call, size = HEAD.unpack(head)
            kind, content = evaluate(calls.read(size))
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            pipe.sendall(HEAD.pack(kind, call, len(content)))
            pipe.sendall(content)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def evaluate(packed: bytes) -> tuple[int, bytes]:
    """Run a pickled call. Return the kind of its outcome, and the pickled value."""
    try:
        paths, many, version, pickled = pickle.loads(packed)
        sys.path += [path for path in paths if path not in sys.path]
        try:
            function, arguments, named = pickle.loads(pickled)
        except ImportError as missing:
            text = f"{missing}; {sys.executable} runs the calls, and needs the modules that they use, and cloudpickle"
            raise type(missing)(text) from None
        except Exception as problem:
            if version == sys.version_info[:2]:
                raise
            text = "{} is Python {}.{}, and the call was made by {}.{}".format(
                sys.executable, *sys.version_info[:2], *version
            )
            raise RuntimeError(f"{text}; use the same version on both sides ({problem})") from None
        result = [function(*each) for each in arguments] if many else function(*arguments, **named)
        try:
            import cloudpickle
        except ImportError:
            return RESULT, pickle.dumps(result, 5)
        return RESULT, cloudpickle.dumps(result, 5)
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        sys.stderr.write(trace)
        try:
            data = pickle.dumps((error, trace))
            pickle.loads(data)
        except BaseException:
            data = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), trace))
        return ERROR, data


class Worker:
    def __init__(self, key: bytes, idle: float) -> None:
        self._key = key
        self._idle = idle
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._client: socket.socket | None = None
        self._link = Link(key, True)
        self._strangers: dict[int, tuple[socket.socket, Link]] = {}
        """Connections that have not proven that they have the key."""
        self._outgoing: deque[memoryview] = deque()
        self._calls: dict[int, bytes] = {}
        """Calls that wait, in order."""
        self._running: int | None = None
        self._ends_at = 0.0
        """When the running call has taken too long; 0 for never."""
        self._outcomes: dict[int, tuple[int, bytes]] = {}
        """Outcomes that the client has not seen."""
        self._took = 0.0
        """Seconds that they took, about."""
        self._began_at = self._busy_at = time.monotonic()
        self._leaves = False
        self._runner = self._new_runner()

    def run(self) -> None:
        """Serve clients, one after the other, until the worker is told to leave or has nothing to do."""
        print(LISTENS.decode() + str(self._listener.getsockname()[1]), flush=True)
        while not self._leaves and not self._is_idle():
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            if self._client is not None:
                poll.register(self._client, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            poll.register(self._runner.socket, select.POLLIN)
            for fd in self._strangers:
                poll.register(fd, select.POLLIN)
            ready = dict(poll.poll(self._timeout()))
            if self._runner.socket.fileno() in ready:
                self._hear_runner()
            if self._client is not None and (events := ready.get(self._client.fileno(), 0)):
                self._serve(events)
            for fd in [fd for fd in self._strangers if fd in ready]:
                self._meet(fd)
            if self._listener.fileno() in ready:
                self._accept()
            if self._ends_at and time.monotonic() >= self._ends_at:
                self._stop("its time limit")
            self._begin()
        self._end()

    def _timeout(self) -> float:
        until = [self._ends_at] if self._ends_at else []
        if self._running is None:
            until.append(self._idle_at())
        return 1000 * max(0.0, min(until) - time.monotonic()) + 1 if until else 600_000

    def _is_idle(self) -> bool:
        return self._running is None and not self._calls and time.monotonic() >= self._idle_at()

    def _idle_at(self) -> float:
        """Return when a worker without calls ends. Results that took longer wait longer for the client."""
        return self._busy_at + (min(MAX_HOLD, HOLD + self._took) if self._outcomes else self._idle)

    def _end(self) -> None:
        self._runner.end()
        if self._client is not None and self._link.proven:
            self._client.settimeout(5.0)
            try:
                for part in self._outgoing:
                    self._client.sendall(part)
                self._client.sendall(b"".join(self._link.message(END)))
                self._client.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    # -- the client --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Greet a new connection. Those of other users of the node stay strangers."""
        new, _ = self._listener.accept()
        new.setblocking(False)
        new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self._key, True)
        new.send(link.greeting)  # it fits into the buffer of a new connection
        self._strangers[new.fileno()] = new, link
        if len(self._strangers) > MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers)))[0].close()

    def _meet(self, fd: int) -> None:
        """Read from a stranger. With a proof of the key it is the client, in place of an earlier connection."""
        stranger, link = self._strangers[fd]
        try:
            data = stranger.recv(SEND)
            if not data:
                raise EOFError
            link.feed(data)
            if proof := link.greet():
                stranger.send(proof)
            messages = list(link.messages())
        except (OSError, EOFError, Forged) as problem:
            print(f"fairlead worker: refused a connection: {problem}", file=sys.stderr, flush=True)
            del self._strangers[fd]
            stranger.close()
            return
        if link.proven:
            del self._strangers[fd]
            if self._client is not None:
                self._client.close()
            self._client, self._link = stranger, link
            self._outgoing.clear()
            for kind, call, content in messages:
                self._handle(kind, call, content)

    def _serve(self, events: int) -> None:
        assert self._client is not None
        try:
            if events & select.POLLOUT and self._outgoing:
                self._flush()
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._client.recv(SEND)
                if not data:
                    raise ConnectionResetError
                self._link.feed(data)
                for kind, call, content in self._link.messages():
                    self._handle(kind, call, content)
        except BlockingIOError:
            pass
        except (OSError, Forged) as problem:
            if isinstance(problem, Forged):
                print(f"fairlead worker: {problem}", file=sys.stderr, flush=True)
            self._client.close()
            self._client = None
            self._outgoing.clear()

    def _flush(self) -> None:
        assert self._client is not None
        while self._outgoing:
            sent = self._client.send(self._outgoing[0])
            if sent < len(self._outgoing[0]):
                self._outgoing[0] = self._outgoing[0][sent:]
                return
            self._outgoing.popleft()

    def _tell(self, kind: int, call: int, content: bytes = b"") -> None:
        if self._client is not None:
            self._outgoing.extend(map(memoryview, self._link.message(kind, call, content)))
            with contextlib.suppress(OSError):  # it blocks, or has ended, which the next reading tells
                self._flush()

    def _handle(self, kind: int, call: int, content: bytes) -> None:
        self._busy_at = time.monotonic()
        if kind == CALL:
            self._calls[call] = content
        elif kind == SEEN:
            self._outcomes.pop(call, None)
            if not self._outcomes:
                self._took = 0.0
        elif kind == CANCEL and call == self._running:
            self._stop("")
        elif kind in (CANCEL, RECALL):
            if self._calls.pop(call, None) is not None:
                self._tell(BACK, call)
        elif kind == EXPECT:
            self._compare({number for (number,) in NUMBER.iter_unpack(content)})
        elif kind == LEAVE:
            self._leaves = True

    def _compare(self, expected: set[int]) -> None:
        """Forget the calls that a client does not expect, and tell it of those that are over or unknown here."""
        for call in [call for call in self._calls if call not in expected]:
            del self._calls[call]
        if self._running is not None and self._running not in expected:
            self._stop("")
        self._outcomes = {call: outcome for call, outcome in self._outcomes.items() if call in expected}
        for call in sorted(expected):
            if call in self._outcomes:
                self._tell(self._outcomes[call][0], call, self._outcomes[call][1])
            elif call not in self._calls and call != self._running:
                self._tell(BACK, call)

    # -- the process of the calls ------------------------------------------------------------------------------------

    def _new_runner(self) -> Runner:
        client = [] if self._client is None else [self._client.fileno()]
        return Runner([self._listener.fileno(), *self._strangers, *client])

    def _replace_runner(self) -> str:
        """End the process of the calls and make a new one. Return how the first one ended."""
        why = self._runner.end()
        self._runner = self._new_runner()
        return why

    def _begin(self) -> None:
        """Begin the next call, if none runs."""
        if self._running is not None or not self._calls or sum(map(len, self._outgoing)) > FULL:
            return
        self._running = next(iter(self._calls))
        content = self._calls.pop(self._running)
        (limit,) = LIMIT.unpack_from(content)
        self._began_at = time.monotonic()
        self._ends_at = self._began_at + limit if limit else 0.0
        try:
            self._runner.begin(self._running, content[LIMIT.size :])
        except OSError:
            self._hear_end()

    def _hear_runner(self) -> None:
        try:
            answer = self._runner.receive()
        except (OSError, EOFError):
            self._hear_end()
            return
        if answer is not None:
            self._finish(*answer)

    def _hear_end(self) -> None:
        """Handle the end of the process that runs calls."""
        why = self._replace_runner()
        self._finish(DIED, f"its process ended with {why}".encode())

    def _stop(self, why: str) -> None:
        """End the running call and its process; `why` is empty if it was cancelled."""
        self._replace_runner()
        if why:
            self._finish(DIED, f"it was stopped at {why}".encode())
        else:
            self._running, self._ends_at = None, 0.0

    def _finish(self, kind: int, content: bytes) -> None:
        call, self._running, self._ends_at = self._running, None, 0.0
        self._busy_at = time.monotonic()
        if call is not None:
            self._took += self._busy_at - self._began_at
            self._outcomes[call] = kind, content
            self._tell(kind, call, content)


def main() -> None:
    # Modules of the working directory come last, so that a file there cannot replace a module that this one imports.
    sys.path[:] = [*(path for path in sys.path if path), ""]
    key = bytes.fromhex(os.environ.pop(KEY, ""))
    if not key:
        sys.exit("there is no key for this worker: its secret has expired or was removed")
    Worker(key, float(sys.argv[1])).run()


if __name__ == "__main__":
    main()
