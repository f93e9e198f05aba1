"""A gang that adds vectors with a ring all-reduce, using only the environment variables that Fairlead sets.

Submit it as a stage of several tasks that start together, such as
`{count: 4, command: [python3, ring.py]}`. Each member has a vector, and at the end all of them have the sum.

First each member sends its port to the member of rank 0 and gets the list of all ports. Then the members form a ring.
Each piece of the vector goes round the ring twice: once to be added up, once to distribute the sum. No member sends
more than two vectors.
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
    """Return the ports of all members by rank."""
    if RANK > 0:
        while True:
            try:
                link = socket.create_connection(MEETING)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)  # rank 0 does not listen yet
        with link, link.makefile("rw") as file:
            print(json.dumps([RANK, port]), file=file, flush=True)
            ports: list[int] = json.loads(file.readline())
            return ports
    ports = [port] + [0] * (SIZE - 1)
    with socket.create_server(("", MEETING[1])) as server:
        files = []
        while not all(ports):
            file = server.accept()[0].makefile("rw")
            rank, member_port = json.loads(file.readline())
            ports[rank] = member_port
            files.append(file)
        for file in files:
            print(json.dumps(ports), file=file, flush=True)
    return ports


def ring(server: socket.socket, ports: list[int]) -> tuple[socket.socket, socket.socket]:
    """Return the connections from the previous member and to the next one."""
    following = (RANK + 1) % SIZE
    next_link = socket.create_connection((PEERS[following], ports[following]))
    return server.accept()[0], next_link


def all_reduce(vector: list[int], previous_link: socket.socket, next_link: socket.socket) -> list[int]:
    """Return the sum of the vectors of all members."""
    pieces = [vector[start::SIZE] for start in range(SIZE)]
    with previous_link.makefile("r") as source, next_link.makefile("w") as target:
        for step in range(2 * SIZE - 2):
            print(json.dumps(pieces[(RANK - step) % SIZE]), file=target, flush=True)
            position = (RANK - step - 1) % SIZE
            piece = json.loads(source.readline())
            adding = step < SIZE - 1
            pieces[position] = [a + b for a, b in zip(pieces[position], piece, strict=True)] if adding else piece
    total = vector.copy()
    for start, piece in enumerate(pieces):
        total[start::SIZE] = piece
    return total


def main() -> None:
    with socket.create_server(("", 0)) as server:
        previous_link, next_link = ring(server, meet(server.getsockname()[1]))
    with previous_link, next_link:
        total = all_reduce([RANK + index for index in range(10)], previous_link, next_link)
    print(f"rank {RANK} of {SIZE}: {total}")


if __name__ == "__main__":
    main()
