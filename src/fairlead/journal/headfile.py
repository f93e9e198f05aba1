"""The head file beside a journal on SQLite: the last record of each stream. It shows if the journal was truncated.

SQLite silently truncates a damaged write-ahead log. Then the head file is ahead of the journal. It is written after
each commit without waiting for the disk, so after a crash of the machine it may be behind the journal, or missing. It
is never ahead of an intact journal, unless `synchronous` is not full.
"""

import contextlib
import hashlib
import os
import struct
from pathlib import Path

from fairlead.journal.chained import Mark
from fairlead.journal.journal import Damaged, JournalError, NotWritten


class HeadFile:
    """The last committed record of each stream, in one slot per stream."""

    _SLOT = struct.Struct(">4s16sQQ16s12s")  # stays inside one sector, so that a crash does not tear it
    _PAGE = 4096

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    @staticmethod
    def key(stream: str) -> bytes:
        return hashlib.blake2b(
            stream.encode(errors="surrogatepass"), digest_size=16, person=b"fairlead-stream"
        ).digest()

    @staticmethod
    def _check(body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=12, person=b"fairlead-head").digest()

    def marks(self) -> dict[bytes, Mark]:
        """Return the last record of each stream, by `key`. Call it before reading the journal, which may grow."""
        before = None
        while True:
            try:
                content = Path(self.path).read_bytes()
            except FileNotFoundError:
                return {}
            except OSError as error:
                raise JournalError(f"{self.path}: {error.strerror}; check the rights on the file") from error
            marks, wrong = self._parse(content)
            if not wrong:
                return marks
            if content == before:  # a read during a write gives other content the next time
                raise Damaged(self.path, wrong, "if the journal itself verifies, delete this file to go on without it")
            before = content

    def _parse(self, content: bytes) -> tuple[dict[bytes, Mark], str]:
        marks: dict[bytes, Mark] = {}
        if len(content) % self._PAGE:
            return marks, f"cut to {len(content)} bytes"
        for at in range(0, len(content), self._SLOT.size):
            slot = content[at : at + self._SLOT.size]
            if any(slot):
                magic, key, seq, epoch, digest, check = self._SLOT.unpack(slot)
                if magic != b"FLH1" or check != self._check(slot[:-12]):
                    return marks, f"the mark at byte {at} does not match its checksum"
                marks[key] = Mark(seq, epoch, digest)
        return marks, ""

    def reserve(self, slot: int) -> None:
        """Open the file and allocate space for a slot, so that a later write cannot fail on a full disk."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            size = os.fstat(self._fd).st_size
            wanted = -(-(slot + 1) * self._SLOT.size // self._PAGE) * self._PAGE
            if wanted > size and os.pwrite(self._fd, bytes(wanted - size), size) != wanted - size:
                os.ftruncate(self._fd, size)
                raise NotWritten(f"{self.path}: no space for the mark of a stream; free some disk space")
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror}; check the disk and the rights on the file") from error

    def write(self, slot: int, stream: str, mark: Mark) -> None:
        body = self._SLOT.pack(b"FLH1", self.key(stream), mark.seq, mark.epoch, mark.digest, bytes(12))[:-12]
        with contextlib.suppress(OSError):  # the record is committed and the head may be behind, so this is no error
            os.pwrite(self._fd, body + self._check(body), slot * self._SLOT.size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
