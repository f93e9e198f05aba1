"""A member of a gang, for tests: adds up the ranks with the other members over plain sockets, again and again.

    python reduce.py FOLDER ROUNDS

The member notes its process in FOLDER after the first round. In the first generation it goes on without end, later it
ends after ROUNDS. It notices the loss of another member only if the connection tells.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

RANK, SIZE, GENERATION = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "FAIRLEAD_GENERATION"))
MASTER = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def joined() -> list[socket.socket]:
    """Return the connections of rank 0 to all others, or the one of another member to rank 0."""
    if RANK == 0:
        with socket.create_server(MASTER) as server:
            return [server.accept()[0] for _ in range(SIZE - 1)]
    while True:
        try:
            return [socket.create_connection(MASTER)]
        except OSError:
            time.sleep(0.02)


def number(link: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        part = link.recv(8 - len(data))
        if not part:
            raise ConnectionError("a member is gone")
        data += part
    return int.from_bytes(data, "big")


def add_up(links: list[socket.socket]) -> int:
    if RANK == 0:
        total = RANK + sum(number(link) for link in links)
    else:
        links[0].sendall(RANK.to_bytes(8, "big"))
        total = number(links[0])
    if RANK == 0:
        for link in links:
            link.sendall(total.to_bytes(8, "big"))
    return total


def note(folder: Path) -> None:
    """Leave the id of this process under its generation and rank."""
    name = f"{GENERATION}.{RANK}"
    (folder / f"new.{name}").write_text(str(os.getpid()))
    (folder / f"new.{name}").rename(folder / name)


def main(folder: Path, rounds: int) -> None:
    links = joined()
    done = 0
    while done < rounds or GENERATION == 1:
        total = add_up(links)
        done += 1
        if done == 1:
            note(folder)
        time.sleep(0.01)
    print(f"rank {RANK} of {SIZE} in generation {GENERATION}: {total}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
