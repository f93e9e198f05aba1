"""What a node keeps of a user's snapshots and images, so that they are fetched once.

The folder belongs to the user. Each entry has a file `NAME.lock` beside it: it is locked while the entry is made, and
by every task that uses it. So no entry is removed under a task. Its time is that of the last use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from contextlib import suppress
from time import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

AGE = 7 * 24 * 3600.0
"""Seconds after its last use when an entry is removed."""
MAX_BYTES = 64 << 30
"""Bytes of all entries of a kind, beyond which the least recently used are removed."""
PART = 1 << 20
UNPACKED = ".unpacked"
"""Ends the name of an entry that marks the folder beside it as complete."""


class CannotPrepare(Exception):
    """Raised if a task cannot have its snapshot or its image. The text says why."""


def say(text: str) -> None:
    print(f"fairlead: {text}", file=sys.stderr, flush=True)


def entry(folder: str, name: str, make: Callable[[str], None]) -> str:
    """Return the path of an entry, which `make` writes to the path that it gets, if it is missing.

    It stays locked until this process and its children have ended.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    path = f"{folder}/{name}"
    lock = _lock(f"{path}.lock")
    while not os.path.exists(path):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another task fetches it to this node; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            _remove(f"{path}.new")
            make(f"{path}.new")
            size = _size(path.removesuffix(UNPACKED) if path.endswith(UNPACKED) else f"{path}.new")
            with open(lock, "w", closefd=False) as file:
                file.write(str(size))
            os.rename(f"{path}.new", path)
            _shrink(folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
    os.utime(lock)
    os.set_inheritable(lock, True)
    return path


def _lock(path: str) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return lock
        os.close(lock)  # the entry was removed meanwhile


def _shrink(folder: str) -> None:
    """Remove entries that are old, and the least recently used ones beyond the limit, unless tasks use them."""
    found = []
    for name in os.listdir(folder):
        if name.endswith(".lock"):
            path = f"{folder}/{name}"
            with suppress(OSError), open(path) as file:
                found.append((os.stat(path).st_mtime, int(file.read() or 0), path.removesuffix(".lock")))
    total = 0
    for used, size, path in sorted(found, reverse=True):
        total += size
        if total <= MAX_BYTES and used > time() - AGE:
            continue
        with suppress(OSError), open(f"{path}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
            os.unlink(f"{path}.lock")
            total -= size


def _remove(path: str) -> None:
    if path.endswith(UNPACKED):
        _remove(path.removesuffix(UNPACKED))
    if os.path.isdir(path) and not os.path.islink(path):
        for place, _, _ in os.walk(path):
            with suppress(OSError):
                os.chmod(place, 0o700)  # images have folders that even their owner cannot write
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{place}/{name}").st_size
    return total


# -- snapshots ---------------------------------------------------------------------------------------------------------


def unpack_snapshot(cache: str, digest: str) -> None:
    """Fill the working directory with the files of a snapshot, unless another task of the job has done it."""
    import tarfile  # only this task needs it

    here = os.getcwd()
    archive = entry(f"{cache}/contents", digest, lambda path: _fetch(digest, path))

    def unpack(done: str) -> None:
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # Python has filters from 3.11.4 on
            tar.extractall(here)
        open(done, "w").close()

    entry(f"{cache}/work", os.path.basename(here) + UNPACKED, unpack)


def _fetch(digest: str, path: str) -> None:
    """Fetch stored files from the server, with the token of the task."""
    import ssl  # only this task needs it
    import urllib.error
    import urllib.request

    token = os.environ.get("FAIRLEAD_TOKEN", "")
    trust = ssl.create_default_context(cafile=os.environ.get("FAIRLEAD_CA"))
    problem = "FAIRLEAD_URL is not set"
    for url in os.environ.get("FAIRLEAD_URL", "").split(","):
        asked = urllib.request.Request(f"{url.strip().rstrip('/')}/api/v1/contents/{digest}")
        asked.add_header("Authorization", f"Bearer {token}")
        try:
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
            )
            with opener.open(asked, timeout=60) as answer, open(path, "wb") as file:
                hashed = hashlib.sha256()
                while data := answer.read(PART):
                    hashed.update(data)
                    file.write(data)
            if hashed.hexdigest() == digest:
                return
            problem = "it arrived incomplete"
        except urllib.error.HTTPError as refusal:
            problem = refusal.read(1_000).decode("utf-8", "replace")
        except (OSError, ValueError) as failure:
            problem = str(failure)
    raise CannotPrepare(f"snapshot {digest[:16]} could not be fetched: {problem}")
