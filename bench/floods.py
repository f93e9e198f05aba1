"""A user's requests while strangers flood the server: the 99th percentile of their times, and the server's memory.

    python -m bench.floods [--seconds 4] [NAME …]

It starts its own server on 127.0.0.1. A second process floods it without a token from the address of the user, on at
most 100 connections at a time, and ends after the given seconds.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import psutil

from tests.live import Up

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
PIECE = 255 * 1024
GOAL, MEMORY = 0.1, 200
"""The longest 99th percentile in seconds, and the most MiB of the server."""

Flood = Callable[[int, float], None]
FLOODS: dict[str, Flood] = {}


def flood(act: Callable[[socket.socket], None], connections: int, keep: bool = True) -> Flood:
    """Return a flood that acts on each of its connections again and again; without `keep`, each on a new one."""

    def run(port: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        kept: list[socket.socket | None] = [None] * connections
        while time.monotonic() < deadline:
            for at in range(connections):
                link, ended = kept[at], False
                try:
                    if link is None:
                        link = kept[at] = socket.create_connection(("127.0.0.1", port), timeout=1)
                        link.settimeout(0.01)
                    act(link)
                except TimeoutError:
                    pass
                except OSError:
                    ended = True
                if ended or not keep:
                    _close(link)
                    kept[at] = None
                if time.monotonic() > deadline:
                    break
        for link in kept:
            _close(link)

    return run


def _close(link: socket.socket | None) -> None:
    if link is not None:
        link.close()


def sends(text: bytes) -> Callable[[socket.socket], None]:
    """Send as much as the server takes, and read what has been answered."""

    def act(link: socket.socket) -> None:
        link.setblocking(False)
        with suppress(BlockingIOError):
            link.send(text)
        with suppress(BlockingIOError):
            if not link.recv(65536):
                raise ConnectionResetError

    return act


def upgraded(frames: bytes) -> Callable[[socket.socket], None]:
    """Open a WebSocket, and send frames."""
    key = base64.b64encode(bytes(16)).decode()
    upgrade = (
        "GET /api/v1/agents HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()
    open_: set[int] = set()
    send = sends(frames)

    def act(link: socket.socket) -> None:
        if link.getsockname()[1] not in open_:
            open_.add(link.getsockname()[1])
            link.sendall(upgrade)
        send(link)

    return act


def half_closes(link: socket.socket) -> None:
    link.sendall(GET)
    link.shutdown(socket.SHUT_WR)


def many(line: bytes, count: int) -> bytes:
    return b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + line * count + b"\r\n"


PING = b"\x89\x80" + bytes(4)
EMPTY = b"\x00\x80" + bytes(4)
WRONG = b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer fl_wrong\r\n\r\n"

FLOODS |= {
    "pipelined requests": flood(sends(GET * (PIECE // len(GET))), 100),
    "pipelined requests, closed at once": flood(sends(GET * (PIECE // len(GET))), 100, keep=False),
    "requests": flood(sends(GET), 100),
    "requests, closed at once": flood(sends(GET), 100, keep=False),
    "connections": flood(lambda link: None, 100, keep=False),
    "half-closed connections": flood(half_closes, 100, keep=False),
    "descriptions of the API": flood(sends(GET.replace(b"/healthz", b"/api/v1/openapi.json") * 100), 100),
    "wrong tokens": flood(sends(WRONG * 100), 100),
    "wrong tokens, closed at once": flood(sends(WRONG), 100, keep=False),
    "headers above 16 KiB": flood(sends(many(b"X: " + b"x" * 1000 + b"\r\n", 64)), 100),
    "10,000 header lines": flood(sends(many(b"a:b\r\n", 10_000)), 100),
    "one cookie of 10,000 parts": flood(sends(many(b"Cookie: " + b"a=b; " * 3_000 + b"\r\n", 1) * 10), 100),
    "cookies with the key of a session": flood(
        sends(many(b"Fairlead-Session: x\r\nCookie: " + b"a=b " * 3_500 + b"\r\n", 1) * 10), 100
    ),
    "empty lines": flood(sends(b"\r\n" * (PIECE // 2)), 100),
    "chunks of one byte": flood(
        sends(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000), 100
    ),
    "pings of WebSockets": flood(upgraded(PING * (PIECE // len(PING))), 100),
    "empty fragments of WebSockets": flood(upgraded(b"\x02\x80" + bytes(4) + EMPTY * (PIECE // len(EMPTY))), 100),
    "upgrades": flood(upgraded(b""), 100, keep=False),
}


class User:
    """A user that sends a request every few milliseconds, on one connection and on new ones in turns."""

    def __init__(self, up: Up, token: str) -> None:
        self._port = int(up.url.rpartition(":")[2])
        self._asked = f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    def times(self, seconds: float) -> list[float]:
        times: list[float] = []
        deadline = time.monotonic() + seconds
        with self._connect() as kept:
            for turn in chain.from_iterable(iter(lambda: (0, 1), None)):
                began = time.perf_counter()
                if turn:
                    with self._connect() as fresh:
                        self._ask(fresh)
                else:
                    self._ask(kept)
                times.append(time.perf_counter() - began)
                if time.monotonic() > deadline:
                    return sorted(times)
                time.sleep(0.005)
        raise AssertionError

    def _connect(self) -> socket.socket:
        link = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def _ask(self, link: socket.socket) -> None:
        link.sendall(self._asked)
        answer = b""
        while b"}" not in answer:
            part = link.recv(65536)
            assert part, "a user's connection was closed"
            answer += part
        assert answer.startswith(b"HTTP/1.1 200"), answer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.floods", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(FLOODS))
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    print("| flood without a token | p50, ms | p99, ms | longest, ms | memory, MiB | |\n|---|---|---|---|---|---|")
    missed = 0
    for name in ["none", *options.names]:
        missed += not _row(name, options.seconds)
    return 1 if missed else 0


def _row(name: str, seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder) / "data", agent=False)
        try:
            created = up.run("token", "create", "--role", "user", "--user", "bob", "--json")
            token = json.loads(created)["secret"]
            user = User(up, token)
            port = int(up.url.rpartition(":")[2])
            process = psutil.Process(up.process.pid)
            highest = [0]
            over = threading.Event()

            def watch() -> None:
                while not over.wait(0.1):
                    highest[0] = max(highest[0], process.memory_info().rss)

            watcher = threading.Thread(target=watch)
            watcher.start()
            flooding = None
            if name != "none":
                flooding = get_context("fork").Process(target=FLOODS[name], args=(port, seconds + 1))
                flooding.start()
                time.sleep(0.5)
            times = user.times(seconds)
            over.set()
            watcher.join()
            if flooding is not None:
                flooding.join()
        finally:
            up.process.terminate()
            up.process.wait(30)
    p99 = times[int(len(times) * 0.99)]
    memory = highest[0] / 2**20
    met = p99 < GOAL and memory < MEMORY
    figures = (times[len(times) // 2] * 1e3, p99 * 1e3, times[-1] * 1e3, memory)
    print(
        f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} | {'met' if met else 'MISSED'} |", flush=True
    )
    return met


if __name__ == "__main__":
    sys.exit(main())
