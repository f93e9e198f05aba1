"""The first program of a task with a snapshot or an image: it fetches what the node lacks, and then becomes the task.

It runs as the user of the task, with its limits and in its cgroup. What it writes to standard error is in the log.
"""

from __future__ import annotations

import os
import sys

from fairlead.agent.spawner.container import enter
from fairlead.agent.spawner.node_cache import CannotPrepare, unpack_snapshot


def main(cache: str, snapshot: str, image: str, count: str, *rest: str) -> int:
    """Prepare and become a command, the last of the arguments, which follows `count` mounts."""
    mounts, command = rest[: int(count)], list(rest[int(count) :])
    try:
        os.makedirs(cache, 0o700, exist_ok=True)
        if snapshot:
            unpack_snapshot(cache, snapshot)
        if image:
            enter(cache, image, mounts, command)
    except CannotPrepare as problem:
        return _fail(str(problem), 126)
    except OSError as problem:
        return _fail(f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem.strerror), 126)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        return _fail(f"command not found{' in the image' if image else ''}: {command[0]}", 127)
    except OSError as problem:
        return _fail(f"{command[0]}: {problem.strerror}", 126)


def _fail(problem: str, code: int) -> int:
    print(f"fairlead: {problem}", file=sys.stderr, flush=True)
    return code
