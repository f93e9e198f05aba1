"""Proxies whose connections can be cut. One of them notes which leaders agents follow."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from fairlead.wire.agent_messages import Hello, Welcome, decode_from_agent, decode_from_server

Watch = Callable[[bytes], None]


class Proxy:
    """A socket in front of another one. Its connections can be cut."""

    def __init__(self, listening: socket.socket) -> None:
        self.open = True
        """False to refuse new connections."""
        self._ends: list[socket.socket] = []
        self._listening = listening
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self) -> socket.socket:
        """Return a new connection to the socket behind this one."""
        raise NotImplementedError

    def watches(self) -> tuple[Watch, Watch]:
        """Return two functions that get the bytes of a new connection: those of the client, and those of the server.

        If a function raises an `OSError`, the bytes are not sent and the connection ends.
        """
        return (_ignore, _ignore)

    def cut_all(self) -> None:
        """End all connections."""
        for end in self._ends:
            _end(end)
        self._ends.clear()

    def close(self) -> None:
        self.open = False
        _end(self._listening)
        self.cut_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    if not self.open:
                        raise ConnectionError
                    server = self.connect()
                except OSError:
                    client.close()
                    continue
                self._ends += [client, server]
                watches = self.watches()
                for source, sink, watch in ((client, server, watches[0]), (server, client, watches[1])):
                    threading.Thread(target=_forward, args=(source, sink, watch), daemon=True).start()


class TcpProxy(Proxy):
    """A TCP port in front of another one."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        super().__init__(listening)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._behind))

    def cut(self) -> None:
        """End all connections, and refuse new ones until `open` is set again."""
        self.open = False
        self.cut_all()


def _ignore(data: bytes) -> None:
    pass


class AgentDoor(TcpProxy):
    """A TCP port in front of a server. It notes which leaders agents follow.

    After its greeting, an agent sends nothing until it has accepted the server's welcome, which has the epoch.
    """

    def __init__(self, behind: int, numbers: Iterator[int], followed: dict[str, dict[int, int]]) -> None:
        """`numbers` counts connections. `followed` is filled with agent → connection → epoch."""
        self._numbers = numbers
        self._followed = followed
        super().__init__(behind)

    def watches(self) -> tuple[Watch, Watch]:
        number, node, epoch = next(self._numbers), "", 0

        def from_agent(message: bytes) -> None:
            nonlocal node
            said = decode_from_agent(message)
            if isinstance(said, Hello):
                node = said.node
            elif node:
                self._followed.setdefault(node, {})[number] = epoch

        def from_server(message: bytes) -> None:
            nonlocal epoch
            said = decode_from_server(message)
            if isinstance(said, Welcome):
                epoch = said.epoch

        return Frames(from_agent), Frames(from_server)


class Frames:
    """Takes the bytes of one side of a WebSocket, and calls a function with each binary message."""

    def __init__(self, message: Callable[[bytes], None]) -> None:
        self._message = message
        self._left = b""
        self._greeted = False
        self._parts = b""

    def __call__(self, data: bytes) -> None:
        self._left += data
        if not self._greeted:
            head, end, rest = self._left.partition(b"\r\n\r\n")
            if not end:
                return
            self._greeted, self._left = True, rest
            if b"upgrade: websocket" not in head.lower():
                self._left, self._message = b"", _ignore  # an ordinary request
        while self._take():
            pass

    def _take(self) -> bool:
        left = self._left
        if len(left) < 2:
            return False
        at, size = 2, left[1] & 127
        if size > 125:
            wide = 2 if size == 126 else 8
            size, at = int.from_bytes(left[2 : 2 + wide], "big"), 2 + wide
        mask = left[at : at + 4] if left[1] & 128 else bytes(4)
        at += 4 if left[1] & 128 else 0
        if len(left) < at + size:
            return False
        body, self._left = left[at : at + size], left[at + size :]
        if left[0] & 15 <= 2:  # a message or a part of one, not a ping or an end
            self._parts += bytes(byte ^ mask[number % 4] for number, byte in enumerate(body))
            if left[0] & 128:
                message, self._parts = self._parts, b""
                self._message(message)
        return True


def _forward(source: socket.socket, sink: socket.socket, watch: Watch) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 20):
            watch(data)
            sink.sendall(data)
    _end(source)
    _end(sink)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
