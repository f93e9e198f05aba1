"""The barrier of a gang against strangers: only members with the gang's key count, and only the first releases it."""

from __future__ import annotations

import hmac
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

SECONDS = 60.0  # the longest wait of a test; no result depends on it
KEY = "5a" * 32


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Gang:
    """Members as processes of their own, on one node."""

    def __init__(self, size: int, peers: str = "127.0.0.1") -> None:
        self.size = size
        self.port = free_port()
        self.peers = ",".join([peers] * size)
        self.members: list[subprocess.Popen[str]] = []

    def start(self, rank: int, seconds: float = SECONDS, **environment: str) -> subprocess.Popen[str]:
        member = subprocess.Popen(
            [sys.executable, "-m", "fairlead.gang", str(seconds)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(self.size),
                "MASTER_ADDR": self.peers.split(",")[0],
                "FAIRLEAD_PORT": str(self.port),
                "FAIRLEAD_PEERS": self.peers,
                "FAIRLEAD_GANG_KEY": KEY,
                "FAIRLEAD_JOB": "7",
                **environment,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        self.members.append(member)
        return member

    def connect(self) -> socket.socket:
        """Connect to the first member as soon as it listens."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), SECONDS)
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)


@contextmanager
def gang(size: int, peers: str = "127.0.0.1") -> Iterator[Gang]:
    found = Gang(size, peers)
    try:
        yield found
    finally:
        for member in found.members:
            member.kill()
            member.communicate()


def sealed(key: str, role: bytes, *parts: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key), role + b"".join(parts), "sha256")


def received(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := link.recv(count - len(data))):
        data += part
    return data


def greet(link: socket.socket, rank: int, key: str = KEY) -> bytes:
    """Greet as a member, and return all bytes that were sent."""
    mine, number = os.urandom(32), rank.to_bytes(4, "big")
    link.sendall(mine)
    answer = received(link, 64)
    theirs = answer[:32]
    link.sendall(number + sealed(key, b"member", mine, theirs, number))
    return mine + number + sealed(key, b"member", mine, theirs, number)


def is_cut(link: socket.socket) -> bool:
    """True if the other side closes the connection, whatever it sent before."""
    link.settimeout(SECONDS)
    with suppress(ConnectionResetError):
        while link.recv(4096):
            pass
    return True


def strangers(found: Gang) -> list[socket.socket]:
    """Connections that send nothing, half a greeting, garbage, a line of an old protocol, a wrong key, a bad rank."""
    silent = [found.connect() for _ in range(300)]
    half = found.connect()
    half.sendall(b"x" * 31)
    for text in (b"\r\n", b"7 1\n7 2\n", b"GET / HTTP/1.1\r\n\r\n" * 100, bytes(100_000)):
        link = found.connect()
        with suppress(OSError):
            link.sendall(text)
        silent.append(link)
    for rank, key in ((1, "00" * 32), (2, ""), (0, KEY), (3, KEY), (2**32 - 1, KEY)):
        link = found.connect()
        with suppress(OSError):
            greet(link, rank, key)
        assert is_cut(link)
    return [*silent, half]


def test_a_gang_starts_among_strangers() -> None:
    with gang(3) as found:
        first = found.start(0)
        links = strangers(found)
        assert first.poll() is None
        others = [found.start(1), found.start(2)]
        for each in (first, *others):
            assert each.wait(SECONDS) == 0, each.communicate()
        for link in links:
            link.close()


def test_what_a_member_sent_cannot_be_sent_again() -> None:
    with gang(3) as found:
        first = found.start(0)
        with found.connect() as link:
            recorded = greet(link, 1)
        second = found.start(2)
        for _ in range(3):
            with found.connect() as link:
                link.sendall(recorded)
                assert is_cut(link)
        assert first.poll() is None and second.poll() is None
        for each in (found.start(1), first, second):
            assert each.wait(SECONDS) == 0, each.communicate()


def test_a_member_waits_for_the_first_one_and_not_for_an_impostor() -> None:
    """An impostor takes the port first, and sends every message that could start the gang."""
    with gang(2) as found:
        with socket.create_server(("127.0.0.1", found.port)) as impostor:
            member = found.start(1)
            impostor.settimeout(SECONDS)
            for text in (b"go\n", bytes(64) + b"go\n", bytes(1000)):
                link, _ = impostor.accept()
                with suppress(OSError):  # the member may have left already
                    link.sendall(text)
                    link.shutdown(socket.SHUT_WR)
                assert is_cut(link)
            assert member.poll() is None
        first = found.start(0)
        assert first.wait(SECONDS) == 0 and member.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("peers", "open_address", "closed_address"),
    [("127.0.0.3", "127.0.0.1", "127.0.0.3"), ("127.0.0.3,127.0.0.4", "127.0.0.3", "127.0.0.1")],
)
def test_the_first_member_listens_where_the_gang_is(peers: str, open_address: str, closed_address: str) -> None:
    """It listens at the node's address; a gang on one node listens for that node only."""
    with gang(2) as found:
        found.peers = peers if "," in peers else f"{peers},{peers}"
        first = found.start(0)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                socket.create_connection((open_address, found.port), SECONDS).close()
                break
            except OSError:
                assert first.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((closed_address, found.port), SECONDS)
        assert found.start(1).wait(SECONDS) == 0
        assert first.wait(SECONDS) == 0


def test_an_address_of_another_machine_is_named_with_the_remedy() -> None:
    with gang(2) as found:
        found.peers = "192.0.2.1,192.0.2.2"
        first = found.start(0)
        _, said = first.communicate(timeout=SECONDS)
        assert (
            first.returncode and "192.0.2.1 is not an address of this machine; start its agent with --address" in said
        )


def test_a_member_without_the_key_says_so() -> None:
    with gang(2) as found:
        member = found.start(1, FAIRLEAD_GANG_KEY="")
        _, said = member.communicate(timeout=SECONDS)
        assert member.returncode and "FAIRLEAD_GANG_KEY is not set" in said


def test_outside_a_gang_it_is_said_that_nothing_is_waited_for() -> None:
    alone = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "fairlead.gang"]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "is in no gang" in done.stderr
