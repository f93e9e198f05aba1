"""List and watch: follows all objects of one kind, also through failures of the API server.

A list is read in pages, and the watch starts at the version of the list. A broken watch resumes after the last version
it saw, which bookmarks keep recent. If that version is too old (410), the list is read again, and objects that are gone
are dropped. Objects are passed on one by one; only their ids are kept here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from fairlead.client.async_pool import Http, Lost, Reply, lines
from fairlead.kubernetes.objects import Meta, Named, Status, message_of

PAGE = 2_000
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
WATCH_SECONDS = 300
"""Seconds after which a watch ends and starts again, so that a dead connection is noticed."""
QUIET_MARGIN = 30.0
LOOKED_FOR_EACH = 5.0
"""Seconds after which an optional kind that the API server does not know is looked for again."""
GONE = 410

Kept = TypeVar("Kept", bound=Named)


class _PageMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _PageMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_page = msgspec.json.Decoder(_Page).decode
_event = msgspec.json.Decoder(_Event).decode
_named = msgspec.json.Decoder(Named).decode
_status = msgspec.json.Decoder(Status).decode


def pause_after(failures: int) -> float:
    """Return the seconds to wait after a number of failures in a row: doubled each time, with jitter."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)


class Follower(Generic[Kept]):
    """Follows the objects of one path. `put` is called with each new or changed object, `drop` with the uid of each
    removed one. `synced` is set after the first complete list."""

    def __init__(
        self,
        http: Http,
        path: str,
        decode: Callable[[bytes | msgspec.Raw], Kept],
        put: Callable[[Kept], None],
        drop: Callable[[str], None],
        selector: dict[str, str] | None = None,
        note: Callable[[str, str], None] = lambda path, problem: None,
        optional: bool = False,
        needed: bool = True,
    ) -> None:
        """Follow `path`. If it is `optional` and the API server does not know it, it counts as empty and is retried.
        If it is `needed`, the adapter starts after its first complete list."""
        self.path = path
        self.needed = needed
        self.synced = asyncio.Event()
        self.relists = 0
        """Number of complete lists that were read."""
        self._http = http
        self._decode = decode
        self._put = put
        self._drop = drop
        self._selector = selector or {}
        self._note = note
        self._optional = optional
        self._known: set[str] = set()
        """Uids of the objects that exist."""
        self._version = ""
        """The version to watch from; empty if the list has to be read."""
        self._failures = 0

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                if self._version:
                    await self._watch()
            except Lost as lost:
                await self._pause(str(lost))
            except msgspec.DecodeError as problem:
                self._version = ""
                await self._pause(f"an answer cannot be read: {problem}")

    async def _list(self) -> None:
        seen: set[str] = set()
        token = ""
        while True:
            reply = await self._http.call("GET", self._url(limit=str(PAGE), **({"continue": token} if token else {})))
            if reply.status == 404 and self._optional:
                self._listed(set())
                await asyncio.sleep(LOOKED_FOR_EACH)
                return
            if reply.status == GONE:  # the list took so long that its version is gone: start again
                seen, token = set(), ""
                await self._pause("the list became too old while it was read", reply)
                continue
            if reply.status != 200:
                await self._pause(_problem(reply), reply)
                continue
            page = _page(reply.content)
            for raw in page.items or ():
                seen.add(self._take(raw).uid)
            token = page.metadata.continue_
            if not token:
                break
        self._version = page.metadata.resource_version
        self._failures = 0
        self.relists += 1
        self._listed(seen)

    def _listed(self, seen: set[str]) -> None:
        """Drop the objects that a complete list does not have."""
        for uid in sorted(self._known - seen):
            self._drop(uid)
        self._known = seen
        self.synced.set()

    async def _watch(self) -> None:
        seconds = WATCH_SECONDS + random.randrange(WATCH_SECONDS)
        url = self._url(
            watch="1", allowWatchBookmarks="true", resourceVersion=self._version, timeoutSeconds=str(seconds)
        )
        count = 0
        async with self._http.stream(url, seconds + QUIET_MARGIN) as (reply, parts):
            if reply.status == GONE:
                self._version = ""
                return
            if reply.status != 200:
                await self._pause(_problem(reply), reply)
                return
            async for line in lines(parts):
                if not line:
                    continue
                if not self._handle(_event(line)):
                    return
                self._failures = 0
                count += 1
                if count % 200 == 0:
                    await asyncio.sleep(0)  # thousands of events may be buffered: let other work run between them
        if not count:  # an answer that ends at once must not cause a busy loop
            await self._pause("")

    def _handle(self, event: _Event) -> bool:
        """Handle an event. Return False if the watch cannot continue."""
        if event.type == "ERROR":
            status = _status(event.object)
            self._note(self.path, f"watch ended: {status.code} {status.message}")
            self._version = ""  # 410, or an error after which events may have been missed
            return False
        if event.type in ("DELETED", "BOOKMARK"):
            meta = _named(event.object).metadata
            if event.type == "DELETED" and meta.uid in self._known:
                self._known.discard(meta.uid)
                self._drop(meta.uid)
        else:
            meta = self._take(event.object)
            self._known.add(meta.uid)
        self._version = meta.resource_version
        return True

    def _take(self, raw: msgspec.Raw) -> Meta:
        found = self._decode(raw)
        self._put(found)
        return found.metadata

    async def _pause(self, problem: str, reply: Reply | None = None) -> None:
        self._failures += 1
        if problem:
            self._note(self.path, problem)
        await asyncio.sleep(max(pause_after(self._failures), reply.retry_after if reply else 0.0))

    def _url(self, **parameters: str) -> str:
        return f"{self.path}?{urlencode({**self._selector, **parameters})}"


def _problem(reply: Reply) -> str:
    return f"{reply.status} {message_of(reply.content)}".rstrip()
