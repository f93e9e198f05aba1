"""Messages between agent and spawner: marshalled values, each preceded by its length.

Unmarshalling is safe here, because both ends share a directory that only their user can enter. Every Python since 3.4
reads marshal format 4, so a spawner that was started before an upgrade still understands its agent.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERSION = 2
"""The version of the messages. The agent tells its version, and a spawner answers with its own. An agent understands
this version and the one before: a spawner of version 1 does not answer, and the result of a task has True in place of
the list of its result files."""
FORMAT = 4
HEAD = 4


def pack(message: Any) -> bytes:
    body = marshal.dumps(message, FORMAT)
    return len(body).to_bytes(HEAD, "little") + body


class Unpacker:
    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    @property
    def unread(self) -> int:
        """The number of bytes of an incomplete message at the end."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Any]:
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while end - at >= HEAD:
            size = int.from_bytes(data[at : at + HEAD], "little")
            if end - at - HEAD < size:
                break
            yield marshal.loads(memoryview(data)[at + HEAD : at + HEAD + size])
            at += HEAD + size
        self._rest = data[at:]
