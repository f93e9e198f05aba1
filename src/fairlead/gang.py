"""A barrier for tasks: wait until all members of the gang have called it.

Use `python -m fairlead.gang [SECONDS]` in a script, or `wait()` in Python. The first member listens on a port that is
named in the environment. The other members connect to it, and it releases all of them when every member is connected.
To prove that they have the gang's key, both sides sign random numbers that they chose for this connection:

    member  32 random bytes
    first   32 random bytes, and its proof
    member  its rank, and its proof
    first   the proof that all members are connected
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
from math import inf
from time import monotonic, sleep

RENDEZVOUS_TIMEOUT = 300.0
PAUSE = 0.05
GREETING = 5.0
"""Seconds that the other side has to send its proof."""
STRANGERS = 256
"""Most unauthenticated connections; the oldest one is dropped first."""
NUMBER = PROOF = 32
RANK = 4
LOOPBACK = "127.0.0.1"


def wait(seconds: float = RENDEZVOUS_TIMEOUT) -> None:
    """Return when all members have called this; raise `TimeoutError` after `seconds`."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size <= 1:
        return  # outside a gang there is nothing to wait for
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
    """A connection to the first member."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.since = monotonic()
        self.number = os.urandom(NUMBER)
        self.received = b""
        self.answered = False
        self.rank = 0
        """The rank of an authenticated member; 0 before authentication."""

    def read(self, key: bytes, size: int) -> bool:
        """Read and check the next bytes of the connection. Return False if it must be dropped."""
        try:
            part = self.link.recv(4096)
            self.received += part
            if not part or self.rank or len(self.received) > NUMBER + RANK + PROOF:
                return False
            theirs = self.received[:NUMBER]
            if len(theirs) == NUMBER and not self.answered:
                self.link.sendall(self.number + _proof(key, b"first", theirs, self.number))
                self.answered = True
        except OSError:
            return False
        if len(self.received) < NUMBER + RANK + PROOF:
            return True
        rank = self.received[NUMBER : NUMBER + RANK]
        expected = _proof(key, b"member", theirs, self.number, rank)
        if hmac.compare_digest(self.received[NUMBER + RANK :], expected) and 0 < int.from_bytes(rank, "big") < size:
            self.rank = int.from_bytes(rank, "big")
        return self.rank > 0

    def release(self, key: bytes) -> None:
        with suppress(OSError):  # the scheduler notices the loss of a member
            self.link.sendall(_proof(key, b"go", self.received[:NUMBER], self.number))


def _gather(address: str, port: int, key: bytes, size: int, until: float) -> None:
    """Listen until every other member is authenticated, then release all of them. Other connections have no effect."""
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
            for selected, _ in ready.select(min(1.0, max(0.0, until - monotonic()))):
                if selected.fileobj is server:
                    with suppress(OSError):  # the connection is gone, or no descriptors are left
                        link, _ = server.accept()
                        link.setblocking(False)
                        strangers[link] = guest = _Guest(link)
                        ready.register(link, selectors.EVENT_READ, guest)
                    continue
                guest = selected.data
                if guest.link not in strangers and members.get(guest.rank) is not guest:
                    continue  # dropped in this round
                if not guest.read(key, size):
                    drop(guest)
                elif guest.rank:
                    del strangers[guest.link]
                    if guest.rank in members:  # a restarted member replaces its last attempt
                        drop(members[guest.rank])
                    members[guest.rank] = guest
            late = monotonic() - GREETING
            for position, guest in enumerate(list(strangers.values())):
                if guest.since < late or position < len(strangers) - STRANGERS:
                    drop(guest)
        for guest in members.values():
            guest.release(key)
            guest.link.close()
        for guest in strangers.values():
            guest.link.close()


def _listening(address: str, port: int, until: float) -> socket.socket:
    """Return a socket that listens at an address of this machine. Wait while the port is in use."""
    if not address:
        raise RuntimeError("MASTER_ADDR is empty; start the agent of this node with --address")
    family, *_, endpoint = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    while True:
        try:
            return socket.create_server(endpoint[:2], family=family, backlog=1024)
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


# -- the other members -------------------------------------------------------------------------------------------


def _call(addresses: list[str], port: int, key: bytes, rank: int, until: float) -> None:
    for address in cycle(addresses):
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        # Ignored: the first member has not started yet or is gone, or another process has its port.
        with suppress(OSError), socket.create_connection((address, port), min(GREETING, left)) as link:
            if _wait_at(link, key, rank, until):
                return
        sleep(PAUSE)


def _wait_at(link: socket.socket, key: bytes, rank: int, until: float) -> bool:
    """Wait until the first member releases this one. Return False if the peer is not the first member."""
    mine, number = os.urandom(NUMBER), rank.to_bytes(RANK, "big")
    link.sendall(mine)
    answer = _received(link, NUMBER + PROOF, min(until, monotonic() + GREETING))
    theirs = answer[:NUMBER]
    if not hmac.compare_digest(answer[NUMBER:], _proof(key, b"first", mine, theirs)):
        return False
    link.sendall(number + _proof(key, b"member", mine, theirs, number))
    return hmac.compare_digest(_received(link, PROOF, until), _proof(key, b"go", mine, theirs))


def _received(link: socket.socket, count: int, until: float) -> bytes:
    data = b""
    while len(data) < count:
        link.settimeout(max(0.001, until - monotonic()))
        part = link.recv(count - len(data))
        if not part:
            break
        data += part
    return data


def main(words: list[str]) -> None:
    """Wait in a script. Exit with 1 if not all members have called in time, and with 2 if the arguments are wrong."""
    from argparse import ArgumentParser

    parser = ArgumentParser(
        prog="python -m fairlead.gang",
        description="Wait until all members of the gang have called this, each in its own task. The tasks of a gang "
        "have the variables that it needs. Exit code: 0 when all have called, 1 if not all did in time.",
    )
    parser.add_argument(
        "seconds",
        nargs="?",
        type=float,
        default=RENDEZVOUS_TIMEOUT,
        metavar="SECONDS",
        help=f"longest time to wait; default {RENDEZVOUS_TIMEOUT:g}",
    )
    seconds = parser.parse_args(words).seconds
    if not 0 <= seconds < inf:
        parser.error(f"{words[0]} is not a time to wait; write a number of seconds, such as 60")
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        sys.stderr.write(
            "fairlead.gang: this task does not wait, because it is in no gang (WORLD_SIZE is not above 1)\n"
        )
    try:
        wait(seconds)
    except (TimeoutError, RuntimeError) as problem:
        parser.exit(1, f"fairlead.gang: {problem}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
