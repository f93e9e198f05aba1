"""For tasks: wait until all members of the gang are there.

`python -m fairlead.gang [SECONDS]` in a script, or `wait()` in Python. The first member listens at a port that the
environment names, the others call it, and it lets all go when it has heard every one. Each side proves that it has the
gang's key, over numbers that both sides chose for this connection:

    member  32 bytes at random
    first   32 bytes at random, and its proof
    member  its rank, and its proof
    first   the proof that all are there
"""

from __future__ import annotations

import errno
import hmac
import os
import selectors
import socket
import sys
from contextlib import suppress
from itertools import cycle
from time import monotonic, sleep

RENDEZVOUS_TIMEOUT = 300.0
PAUSE = 0.05
GREETING = 5.0
"""Seconds that the other side has to prove itself."""
STRANGERS = 256
"""Connections without a proof that are kept; the oldest one goes first."""
NUMBER = PROOF = 32
RANK = 4
LOOPBACK = "127.0.0.1"


def wait(seconds: float = RENDEZVOUS_TIMEOUT) -> None:
    """Return when all members have called this; raises TimeoutError after so many seconds."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size <= 1:
        return
    key = bytes.fromhex(os.environ.get("FAIRLEAD_GANG_KEY", ""))
    if not key:
        raise RuntimeError("FAIRLEAD_GANG_KEY is not set; run this in a task of a gang, with the task's environment")
    until = monotonic() + seconds
    master, port = os.environ["MASTER_ADDR"], int(os.environ["FAIRLEAD_PORT"])
    peers = os.environ.get("FAIRLEAD_PEERS", "").split(",")
    try:
        if rank == 0:
            alone = len(peers) == size and len(set(peers)) == 1
            _gather(LOOPBACK if alone else master, port, key, size, until)
        else:
            beside = rank < len(peers) and peers[rank] == peers[0]
            _call([LOOPBACK, master] if beside else [master], port, key, rank, until)
    except TimeoutError:
        raise TimeoutError(f"not all {size} members of the gang came within {seconds:g} s") from None


def _proof(key: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, role + b"".join(parts), "sha256")


# -- the first member --------------------------------------------------------------------------------------------


class _Guest:
    """A connection, from its first byte until all are there."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.since = monotonic()
        self.number = os.urandom(NUMBER)
        self.said = b""
        self.answered = False
        self.rank = 0
        """Of a member that proved itself; 0 before."""

    def hear(self, key: bytes, size: int) -> bool:
        """Take in what it says; False if it is to be dropped."""
        try:
            part = self.link.recv(4096)
            self.said += part
            if not part or self.rank or len(self.said) > NUMBER + RANK + PROOF:
                return False
            theirs = self.said[:NUMBER]
            if len(theirs) == NUMBER and not self.answered:
                self.link.sendall(self.number + _proof(key, b"first", theirs, self.number))
                self.answered = True
        except OSError:
            return False
        if len(self.said) < NUMBER + RANK + PROOF:
            return True
        rank = self.said[NUMBER : NUMBER + RANK]
        expected = _proof(key, b"member", theirs, self.number, rank)
        if hmac.compare_digest(self.said[NUMBER + RANK :], expected) and 0 < int.from_bytes(rank, "big") < size:
            self.rank = int.from_bytes(rank, "big")
        return self.rank > 0

    def let_go(self, key: bytes) -> None:
        with suppress(OSError):  # a member that is gone by now is for the scheduler to notice
            self.link.sendall(_proof(key, b"go", self.said[:NUMBER], self.number))


def _gather(address: str, port: int, key: bytes, size: int, until: float) -> None:
    """Listen until every other member has proved itself, and let all go. Strangers change nothing."""
    strangers: dict[socket.socket, _Guest] = {}
    members: dict[int, _Guest] = {}
    with _listening(address, port, until) as server, selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)

        def drop(guest: _Guest) -> None:
            strangers.pop(guest.link, None)
            if members.get(guest.rank) is guest:
                del members[guest.rank]
            ready.unregister(guest.link)
            guest.link.close()

        while len(members) < size - 1:
            if monotonic() >= until:
                raise TimeoutError
            for each, _ in ready.select(min(1.0, max(0.0, until - monotonic()))):
                if each.fileobj is server:
                    with suppress(OSError):  # it is gone again, or there are no descriptors for it
                        link, _ = server.accept()
                        link.setblocking(False)
                        strangers[link] = guest = _Guest(link)
                        ready.register(link, selectors.EVENT_READ, guest)
                    continue
                guest = each.data
                if guest.link not in strangers and members.get(guest.rank) is not guest:
                    continue  # it was dropped in this round
                if not guest.hear(key, size):
                    drop(guest)
                elif guest.rank:
                    del strangers[guest.link]
                    if guest.rank in members:  # one that was started anew takes the place of its last attempt
                        drop(members[guest.rank])
                    members[guest.rank] = guest
            late = monotonic() - GREETING
            for place, guest in enumerate(list(strangers.values())):
                if guest.since < late or place < len(strangers) - STRANGERS:
                    drop(guest)
        for guest in members.values():
            guest.let_go(key)
            guest.link.close()
        for guest in strangers.values():
            guest.link.close()


def _listening(address: str, port: int, until: float) -> socket.socket:
    """Listen at one address of this machine. A port that is in use may become free."""
    if not address:
        raise RuntimeError("MASTER_ADDR is empty; start the agent of this node with --address")
    family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    while True:
        try:
            return socket.create_server(place[:2], family=family, backlog=1024)
        except OSError as problem:
            if problem.errno == errno.EADDRNOTAVAIL:
                raise RuntimeError(
                    f"{address} is not an address of this machine; start its agent with --address and one that is"
                ) from None
            if problem.errno != errno.EADDRINUSE:
                raise
            if monotonic() >= until:
                raise RuntimeError(f"port {port} of {address} is in use by another process; end that one") from None
        sleep(PAUSE)


# -- the others --------------------------------------------------------------------------------------------------


def _call(addresses: list[str], port: int, key: bytes, rank: int, until: float) -> None:
    for address in cycle(addresses):
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        # The first member is not there yet, went away, or another process has its port.
        with suppress(OSError), socket.create_connection((address, port), min(GREETING, left)) as link:
            if _wait_at(link, key, rank, until):
                return
        sleep(PAUSE)


def _wait_at(link: socket.socket, key: bytes, rank: int, until: float) -> bool:
    """True when the first member lets go; False if what answers is not the first member."""
    mine, number = os.urandom(NUMBER), rank.to_bytes(RANK, "big")
    link.sendall(mine)
    answer = _received(link, NUMBER + PROOF, min(until, monotonic() + GREETING))
    theirs = answer[:NUMBER]
    if not hmac.compare_digest(answer[NUMBER:], _proof(key, b"first", mine, theirs)):
        return False
    link.sendall(number + _proof(key, b"member", mine, theirs, number))
    return hmac.compare_digest(_received(link, PROOF, until), _proof(key, b"go", mine, theirs))


def _received(link: socket.socket, count: int, until: float) -> bytes:
    """Return that many bytes, or fewer if the other side closes."""
    data = b""
    while len(data) < count:
        link.settimeout(max(0.001, until - monotonic()))
        part = link.recv(count - len(data))
        if not part:
            break
        data += part
    return data


if __name__ == "__main__":
    wait(float(sys.argv[1]) if len(sys.argv) > 1 else RENDEZVOUS_TIMEOUT)
