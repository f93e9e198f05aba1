"""A gang that adds up vectors in a ring, with nothing but what Fairlead puts into the environment.

Submit it as a stage of several tasks that start together, such as
`{count: 4, command: [python3, ring.py]}`. Each member has a vector, and in the end all of them have the sum.

First they meet: each tells the first one where it listens and gets the list of all. Then they are a ring, and each
piece of the vector goes round it twice: once to be added up, once to be handed to everybody. No member sends more than
two vectors.
"""

from __future__ import annotations

import json
import os
import socket
import time

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MEETING = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
PEERS = os.environ["FAIRLEAD_PEERS"].split(",")


def meet(port: int) -> list[int]:
    """Everybody's port, by rank."""
    if RANK > 0:
        while True:
            try:
                link = socket.create_connection(MEETING)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)  # the first one is not there yet
        with link, link.makefile("rw") as file:
            print(json.dumps([RANK, port]), file=file, flush=True)
            ports: list[int] = json.loads(file.readline())
            return ports
    ports = [port] + [0] * (SIZE - 1)
    with socket.create_server(("", MEETING[1])) as server:
        files = []
        while not all(ports):
            file = server.accept()[0].makefile("rw")
            rank, where = json.loads(file.readline())
            ports[rank] = where
            files.append(file)
        for file in files:
            print(json.dumps(ports), file=file, flush=True)
    return ports


def ring(server: socket.socket, ports: list[int]) -> tuple[socket.socket, socket.socket]:
    """The links from the one before and to the one behind."""
    behind = (RANK + 1) % SIZE
    to = socket.create_connection((PEERS[behind], ports[behind]))
    return server.accept()[0], to


def all_reduce(vector: list[int], before: socket.socket, behind: socket.socket) -> list[int]:
    pieces = [vector[at::SIZE] for at in range(SIZE)]
    with before.makefile("r") as source, behind.makefile("w") as target:
        for step in range(2 * SIZE - 2):
            print(json.dumps(pieces[(RANK - step) % SIZE]), file=target, flush=True)
            here = (RANK - step - 1) % SIZE
            piece = json.loads(source.readline())
            adding = step < SIZE - 1
            pieces[here] = [a + b for a, b in zip(pieces[here], piece, strict=True)] if adding else piece
    total = vector.copy()
    for at, piece in enumerate(pieces):
        total[at::SIZE] = piece
    return total


def main() -> None:
    with socket.create_server(("", 0)) as server:
        before, behind = ring(server, meet(server.getsockname()[1]))
    with before, behind:
        total = all_reduce([RANK + at for at in range(10)], before, behind)
    print(f"rank {RANK} of {SIZE}: {total}")


if __name__ == "__main__":
    main()
