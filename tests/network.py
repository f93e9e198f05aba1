"""A TCP proxy on 127.0.0.1, which can be cut."""

import socket
import threading
from contextlib import suppress


class TcpProxy:
    """A port in front of another one."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self.open = True
        """False to refuse new connections."""
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and refuse new ones until `open` is set again."""
        self.open = False
        for end in self._ends:
            _end(end)
        self._ends.clear()

    def close(self) -> None:
        _end(self._listening)
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    if not self.open:
                        raise ConnectionError
                    server = socket.create_connection(("127.0.0.1", self._behind))
                except OSError:
                    client.close()
                    continue
                self._ends += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _end(source)
    _end(sink)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
