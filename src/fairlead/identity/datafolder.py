"""The data directory of a server. It belongs to the user of the server, and no other user can read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fairlead.identity.smallfile import LEFTOVER, FileProblem

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def prepare(directory: Path) -> str:
    """Create a data directory, or make an existing one private. Return a warning if other users could read it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid():
            raise FileProblem(
                f"{directory}: belongs to user {status.st_uid}, and the server runs as {os.geteuid()}; "
                "start the server as its owner, name another directory, or change the owner"
            )
        for path in directory.iterdir():
            if LEFTOVER.fullmatch(path.name):
                path.unlink()  # left by an interrupted write
        if not status.st_mode & OTHERS:
            return ""
        directory.chmod(0o700)
    except OSError as problem:
        raise FileProblem(f"{directory}: {problem.strerror}; check the rights on it") from problem
    return (
        f"{directory} could be read by other users (mode {stat.S_IMODE(status.st_mode):o}) and is private now; they "
        "may know its tokens and secrets: revoke the tokens, remove the file `token`, and set the secrets again"
    )
