"""For tasks: wait until all members of the gang are there.

`python -m fairlead.gang [SECONDS]` in a script, or `wait()` in Python. The first member listens at a port that the
environment names, the others call it, and it lets all go when it has heard every one.
"""

from __future__ import annotations

import os
import socket
import sys
from time import monotonic, sleep

PATIENCE = 300.0
PAUSE = 0.05


def wait(seconds: float = PATIENCE) -> None:
    """Return when all members have called this; raises TimeoutError after so many seconds."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size <= 1:
        return
    until = monotonic() + seconds
    address = (os.environ["MASTER_ADDR"], int(os.environ["FAIRLEAD_PORT"]))
    name = f"{os.environ.get('FAIRLEAD_JOB', '')} {rank}\n".encode()
    try:
        if rank == 0:
            _gather(address[1], size, until)
        else:
            _call(address, name, until)
    except TimeoutError:
        raise TimeoutError(f"not all {size} members of the gang came within {seconds:g} s") from None


def _gather(port: int, size: int, until: float) -> None:
    job = os.environ.get("FAIRLEAD_JOB", "")
    there: dict[str, socket.socket] = {}
    with socket.create_server(("", port)) as server:
        while len(there) < size - 1:
            server.settimeout(max(0.001, until - monotonic()))
            member, _ = server.accept()
            member.settimeout(max(0.001, until - monotonic()))
            name = member.makefile("r", encoding="utf-8", errors="replace").readline(200).split()
            if len(name) == 2 and name[0] == job and name[1].isdigit():
                there[name[1]] = member  # one that was started anew takes the place of its last attempt
            else:
                member.close()
        for member in there.values():
            member.sendall(b"go\n")
            member.close()


def _call(address: tuple[str, int], name: bytes, until: float) -> None:
    while True:
        if monotonic() >= until:
            raise TimeoutError
        try:
            with socket.create_connection(address, max(0.001, until - monotonic())) as link:
                link.sendall(name)
                if link.recv(3) == b"go\n":
                    return
        except TimeoutError:
            raise
        except OSError:
            pass  # the first member is not there yet, or went away
        sleep(PAUSE)


if __name__ == "__main__":
    wait(float(sys.argv[1]) if len(sys.argv) > 1 else PATIENCE)
