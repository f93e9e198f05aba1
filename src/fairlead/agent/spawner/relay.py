"""The far end of a tunnel: a process between the tunnel and a process of a task, its terminal, or ports of the node.

It is forked from the spawner, so it runs as the user of the task, and it ends when nothing more can be sent or
received. The spawner gives it connections of the agent, one after another, and tells it how the process
ended. It does not start processes.

While no client is connected, output waits for `PATIENCE` seconds, up to the window of its channel. After that it
goes only to the log, if there is one, and a later client gets only later output.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import errno
import fcntl
import os
import select
import signal
import termios
from time import monotonic

from fairlead.agent.spawner.files import close_all_but
from fairlead.wire.tunnel_frames import (
    CHANNELS,
    CLOSE,
    CODE,
    CONNECTIONS,
    DATA,
    END,
    EXIT,
    NUMBER,
    OPEN,
    PAIR,
    PIECE,
    SIGNAL,
    SIZE,
    STANDARD,
    WINDOW,
    Broken,
    Tunnel,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from fairlead.agent.spawner.task_start import Ends

PATIENCE = 60.0
"""Seconds in which a client that lost its connection misses nothing."""
ABANDONED = 3600.0
"""Seconds without a client after which the process of an attached client gets SIGHUP, and connections are closed."""
DRAIN = 0.3
"""Seconds after the end of a process in which output of its other processes is still taken."""
SCREEN = 1 << 14
"""Bytes of a terminal's last output that a client gets which comes later."""
SEND = 1 << 18
MOST = 4 * WINDOW
"""Bytes that wait in one direction, of all channels together, above which no more are read."""


class Output:
    """A pipe or terminal that is read, and the log that gets a copy; -1 for none."""

    def __init__(self, fd: int, log: int) -> None:
        self.fd = fd
        self.log = log


class Input:
    """A pipe, terminal or socket that is written."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = bytearray()
        self.ends = False
        """True if no more will come."""


def _has_more(output: Output) -> bool:
    """True if there is output that was not read, perhaps because the client is slow."""
    poll = select.poll()
    poll.register(output.fd, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


class Relay:
    def __init__(self, control: _socket.socket, pid: int, own: bool, ends: Ends | None) -> None:
        """Take the process and its descriptors; 0 and None for a tunnel to ports.

        `own` is True for the streams of a task itself, which go on without a client.
        """
        self._control = control
        self._pid = pid
        self._terminal = ends.stdin if ends is not None and ends.terminal else -1
        self._own = own
        self._link: Any = None
        self._client = b""
        """The name that the last client gave its tunnel; empty if none was connected."""
        self._tunnel = Tunnel()
        self._outgoing = b""
        self._outputs = {} if ends is None else {channel: Output(*fds) for channel, fds in ends.outputs.items()}
        self._inputs = {} if ends is None else {STANDARD: Input(ends.stdin)}
        self._ports: dict[int, Any] = {}
        """Channel → its connection to a port."""
        self._connecting: dict[int, list[tuple[int, tuple[str, int]]]] = {}
        """Channel whose connection is being opened → the addresses to try next."""
        self._screen = b""
        self._ended: tuple[int, str] | None = None
        self._drain_until = 0.0
        self._told = False
        """True once the exit code has been sent."""
        self._away_since = monotonic()
        self._dumping = False
        """True if output goes only to the log, because no client is there."""

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._is_over():
            poll = select.poll()
            for fd, mask in self._events().items():
                poll.register(fd, mask)
            try:
                ready = dict(poll.poll(self._timeout()))
            except InterruptedError:
                continue
            if self._control.fileno() in ready:
                self._listen()
            try:
                self._serve(ready)
            except Broken as problem:
                self._refuse(str(problem))
            self._keep_time()

    def _events(self) -> dict[int, int]:
        """Return the events to wait for, by descriptor."""
        masks = {self._control.fileno(): select.POLLIN}

        def want(fd: int, mask: int) -> None:
            masks[fd] = masks.get(fd, 0) | mask

        waiting = sum([len(target.pending) for target in self._inputs.values()]) >= MOST
        if self._link is not None:
            want(self._link.fileno(), 0 if waiting else select.POLLIN)
            if self._outgoing or self._tunnel.unsent:
                want(self._link.fileno(), select.POLLOUT)
        for channel, output in self._outputs.items():
            # Confirmations are read only with the rest: while that waits, output must go on.
            if self._dumping or (self._tunnel.room(channel) and (waiting or self._tunnel.kept_bytes < MOST)):
                want(output.fd, select.POLLIN)
        for channel, target in self._inputs.items():
            if target.pending or channel in self._connecting:
                want(target.fd, select.POLLOUT)
        return masks

    def _serve(self, ready: dict[int, int]) -> None:
        if self._link is not None and self._link.fileno() in ready:
            self._converse(ready[self._link.fileno()])
        for channel, output in list(self._outputs.items()):
            if ready.get(output.fd, 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._read(channel, output)
        for channel, target in list(self._inputs.items()):
            events = ready.get(target.fd, 0)
            if channel in self._connecting and events:
                self._connected(channel, target)
            elif events & (select.POLLOUT | select.POLLERR | select.POLLHUP) and target.pending:
                self._write(channel, target)
        if self._link is not None and (self._outgoing or self._tunnel.unsent):
            self._send()

    def _timeout(self) -> int:
        if self._ended is not None and not self._told:
            return 50
        return 1000 if self._link is None else 60_000

    def _keep_time(self) -> None:
        now = monotonic()
        if self._link is None:
            self._see_absence(now)
        if self._ended is None or self._told or (now < self._drain_until and self._outputs):
            return
        if not any([_has_more(output) for output in self._outputs.values()]):
            self._tell_end(*self._ended)

    def _see_absence(self, now: float) -> None:
        """Go on without a client that is away for too long."""
        away = now - self._away_since
        if away > PATIENCE and not self._dumping and self._own:
            self._forget_client()
        if away > ABANDONED and self._pid and STANDARD in self._inputs and (not self._own or self._terminal < 0):
            self._signal(signal.SIGHUP)
            self._away_since = now

    def _tell_end(self, code: int, why: str) -> None:
        self._told = True
        if not self._dumping:
            for channel in list(self._outputs):
                self._end_output(channel)
            self._say(EXIT, STANDARD, CODE.pack(code) + why.encode()[:1000])

    def _forget_client(self) -> None:
        """Let output go only to the log from now on."""
        self._dumping = True
        self._tunnel = Tunnel()

    def _is_over(self) -> bool:
        if self._pid and self._ended is None:
            return False
        away = monotonic() - self._away_since
        if not self._pid:
            return self._link is None and away > PATIENCE
        done = self._told and self._tunnel.settled and not self._outgoing and bool(self._client)
        return self._told and (done or (self._link is None and (self._dumping or away > PATIENCE)))

    # -- the spawner ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take a connection of the agent, or the end of the process."""
        data, ancillary, _, _ = self._control.recvmsg(2048, _socket.CMSG_SPACE(4))
        for level, kind, content in ancillary:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[:4])
                self._connect(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fds[0]), data)
                return
        if not data:
            os._exit(0)  # the spawner is gone, and its guard ends the tasks
        code, _, why = data.decode("utf-8", "replace").partition(" ")
        self._ended = (int(code), why)
        self._drain_until = monotonic() + DRAIN

    def _connect(self, link: _socket.socket, client: bytes) -> None:
        """Continue with a new connection: of the same client after a break, or of another client."""
        new = client != self._client
        if self._link is not None and new and self._terminal >= 0:
            self._say(CLOSE, 0, b"another client has taken this terminal over")
            self._send()
        if new and (self._client or self._dumping):
            if self._terminal < 0 and self._client:
                link.setblocking(False)
                refused = Tunnel()
                refused.connect()
                refused.greeted = True
                refused.send(CLOSE, 0, b"its standard input and output belong to another client")
                with contextlib.suppress(OSError):
                    link.send(refused.take())
                link.close()
                return
            self._tunnel = Tunnel()
            self._show_screen()
        elif self._dumping:
            self._tunnel = Tunnel()  # it cannot go on, and is told so
        self._drop()
        self._dumping = False
        self._client = client
        self._link = link
        link.setblocking(False)
        self._outgoing = b""
        self._tunnel.connect()
        self._send()

    def _show_screen(self) -> None:
        if self._screen and STANDARD in self._outputs:
            self._say(DATA, STANDARD, self._screen)

    def _say(self, kind: int, channel: int, content: bytes = b"") -> None:
        self._tunnel.send(kind, channel, content)

    def _drop(self) -> None:
        """End the connection; the client may come back."""
        if self._link is not None:
            self._link.close()
            self._link = None
            self._tunnel.disconnect()
            self._outgoing = b""
            self._away_since = monotonic()

    # -- the client ----------------------------------------------------------------------------------------------

    def _converse(self, events: int) -> None:
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                data = self._link.recv(SEND)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return self._drop()
            for kind, channel, content in self._tunnel.receive(data):
                self._handle(kind, channel, content)

    def _refuse(self, problem: str) -> None:
        """End the tunnel of a client that cannot go on. A new client may come."""
        fresh = Tunnel()
        fresh.connect()
        fresh.greeted = True
        fresh.send(CLOSE, 0, f"the connection was lost for too long: {problem}".encode())
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.send(self._outgoing + fresh.take())
        self._drop()
        if not self._own:
            self._signal(signal.SIGHUP)
            os._exit(0)
        self._forget_client()

    def _send(self) -> None:
        try:
            while True:
                if not self._outgoing:
                    self._outgoing = self._tunnel.take(SEND)
                    if not self._outgoing:
                        return
                self._outgoing = self._outgoing[self._link.send(self._outgoing) :]
        except BlockingIOError:
            return
        except OSError:
            self._drop()

    def _handle(self, kind: int, channel: int, content: bytes) -> None:
        if kind in (DATA, END):
            self._take_input(channel, content if kind == DATA else None)
        elif kind == CLOSE and channel == 0:
            self._leave()
        elif kind == CLOSE and channel in self._ports:
            self._close_port(channel, None)
        elif kind == OPEN:
            self._open(channel, PAIR.unpack(content)[0])
        elif kind == SIZE and self._terminal >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, PAIR.pack(*PAIR.unpack(content)) + bytes(4))
        elif kind == SIGNAL:
            self._signal(NUMBER.unpack(content)[0])

    def _take_input(self, channel: int, content: bytes | None) -> None:
        """Queue input for its reader; None ends the input."""
        target = self._inputs.get(channel)
        if target is not None and not target.ends:
            if content is None:
                target.ends = True
            else:
                target.pending += content
            if channel not in self._connecting:
                self._write(channel, target)
        elif content is not None:
            self._tunnel.use(channel, len(content))  # its reader has ended
            if channel != STANDARD and channel not in self._ports:
                self._tunnel.forget(channel)

    def _leave(self) -> None:
        """The client has left for good."""
        self._drop()
        if self._own:
            self._forget_client()
        else:
            self._signal(signal.SIGHUP)
            os._exit(0)

    def _signal(self, number: int) -> None:
        if self._pid and self._ended is None:
            try:
                os.killpg(self._pid, number)
            except (OSError, ValueError, OverflowError):
                return

    # -- processes and ports -------------------------------------------------------------------------------------

    def _read(self, channel: int, output: Output) -> None:
        most = PIECE if self._dumping else min(PIECE, self._tunnel.room(channel))
        if not most:
            return
        if self._tunnel.kept_bytes >= 4 * MOST and not self._dumping:
            raise Broken("its connections read too little")
        try:
            data = os.read(output.fd, most)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # the last process has closed the terminal
        if not data:
            return self._end_output(channel)
        if output.log >= 0:
            with contextlib.suppress(OSError):  # a full disk
                os.write(output.log, data)
        if self._terminal >= 0:
            self._screen = (self._screen + data)[-SCREEN:]
        if not self._dumping:
            self._say(DATA, channel, data)

    def _end_output(self, channel: int) -> None:
        output = self._outputs.pop(channel)
        if output.log >= 0:
            os.close(output.log)
        if not self._dumping:
            self._say(END, channel)
        if channel in self._ports:
            target = self._inputs.get(channel)
            if target is None:
                self._close_port(channel, None)
        elif output.fd != self._terminal:
            os.close(output.fd)

    def _write(self, channel: int, target: Input) -> None:
        while target.pending:
            try:
                written = os.write(target.fd, target.pending)
            except BlockingIOError:
                return
            except OSError:
                return self._stop_input(channel, target)
            self._tunnel.use(channel, written)
            del target.pending[:written]
        if target.ends:
            self._end_input(channel, target)

    def _end_input(self, channel: int, target: Input) -> None:
        """Let the reader see the end of its input."""
        if channel in self._ports:
            del self._inputs[channel]
            with contextlib.suppress(OSError):
                self._ports[channel].shutdown(_socket.SHUT_WR)
            if channel not in self._outputs:
                self._close_port(channel, None)
        elif target.fd == self._terminal:
            target.ends = False
            with contextlib.suppress(OSError):
                os.write(target.fd, b"\x04")  # the character that ends the input of a terminal
        else:
            del self._inputs[channel]
            os.close(target.fd)

    def _stop_input(self, channel: int, target: Input) -> None:
        """Take no more input: its reader has ended."""
        self._tunnel.use(channel, len(target.pending))
        target.pending.clear()
        target.ends = True
        if channel in self._ports:
            self._close_port(channel, "the connection was reset")
        elif target.fd != self._terminal:
            del self._inputs[channel]
            os.close(target.fd)
            self._say(CLOSE, channel)

    def _open(self, channel: int, port: int) -> None:
        if channel < CONNECTIONS or channel in self._ports or self._pid or len(self._ports) >= CHANNELS:
            return self._say(CLOSE, channel, b"no more connections can be opened; close some")
        self._connecting[channel] = [(_socket.AF_INET, ("127.0.0.1", port)), (_socket.AF_INET6, ("::1", port))]
        self._try_next(channel, "")

    def _try_next(self, channel: int, problem: str) -> None:
        while self._connecting[channel]:
            family, address = self._connecting[channel].pop(0)
            try:
                sock = _socket.socket(family, _socket.SOCK_STREAM)
            except OSError as fault:
                problem = problem or str(fault.strerror)
                continue
            sock.setblocking(False)
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            code = sock.connect_ex(address)
            if code in (0, errno.EINPROGRESS):
                before = self._inputs.get(channel)
                self._ports[channel] = sock
                self._inputs[channel] = Input(sock.fileno())
                if before is not None:
                    self._inputs[channel].pending, self._inputs[channel].ends = before.pending, before.ends
                return
            sock.close()
            problem = problem or os.strerror(code)
        del self._connecting[channel]
        self._inputs.pop(channel, None)
        self._ports.pop(channel, None)
        self._say(CLOSE, channel, problem.encode())
        self._tunnel.forget(channel)

    def _connected(self, channel: int, target: Input) -> None:
        sock = self._ports[channel]
        code = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code:
            sock.close()
            return self._try_next(channel, os.strerror(code))
        del self._connecting[channel]
        self._outputs[channel] = Output(sock.fileno(), -1)
        self._write(channel, target)

    def _close_port(self, channel: int, problem: str | None) -> None:
        self._outputs.pop(channel, None)
        self._inputs.pop(channel, None)
        self._connecting.pop(channel, None)
        self._ports.pop(channel).close()
        self._say(CLOSE, channel, (problem or "").encode())
        self._tunnel.forget(channel)


def run_relay(control: _socket.socket, pid: int, own: bool, ends: Ends | None) -> NoReturn:
    """Run as the relay, in a process that was forked from the spawner."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        kept = [] if ends is None else [ends.stdin, *(fd for pair in ends.outputs.values() for fd in pair)]
        close_all_but(control.fileno(), *kept)
        os.chdir("/")
        for fd in kept:
            if fd >= 0:
                os.set_blocking(fd, False)
        Relay(control, pid, own, ends).run()
        code = 0
    except BaseException as problem:
        os.write(2, f"a relay failed: {problem!r}\n".encode())
    finally:
        os._exit(code)
