"""Handlers for content that users store for their jobs: snapshots of code."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from functools import partial

from fairlead.core.documents import parse_digest
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader
from fairlead.history.outputs import OutputStore
from fairlead.http.context import Request, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.http.routes.results import content, sent
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import BYTES
from fairlead.wire.unserved import Unserved


@serves(op.StoreContent)
async def store_content(request: Request, asked: op.StoreContent) -> wire.Content:
    read = Reader(asked.document, "", "content")
    size = read.count("size", low=0, high=wire.MAX_CONTENT)
    offset = read.count("offset", 0, 0, size)
    text = read.get("data", "")
    read.close()
    try:
        data = b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        data = None
    if data is None or offset + len(data) > size:
        raise Refused("data", "it is not base64, or longer than size says; send the bytes from offset on in base64")
    put = partial(
        _store(request, asked.digest).add_content, request.leader(asked).name, request.caller.user, asked.digest
    )
    stored = await asyncio.to_thread(put, size, offset, data)
    if stored is None:
        raise Refused("digest", "the bytes have another SHA-256, and were dropped; send them again from offset 0")
    return wire.Content(digest=asked.digest, size=size, stored=stored)


@serves(op.Content)
async def read_content(request: Request, asked: op.Content) -> Response:
    store, place = _store(request, asked.digest), (request.leader(asked).name, request.caller.user, asked.digest)
    size = await asyncio.to_thread(store.content_size, *place)
    if size is None:
        raise Refused("digest", not_stored(asked.digest), "missing")
    answer = streamed(request, sent(content(partial(store.read_content, *place), size)), BYTES)
    answer.headers["content-length"] = str(size)
    return answer


def not_stored(digest: str) -> str:
    return f"{digest[:16]}… is not stored for this user, or was removed by age or the size of all files; store it again"


def _store(request: Request, digest: str) -> OutputStore:
    parse_digest(digest, "digest")
    if request.services.outputs is None:
        raise Unserved("unavailable", "the server has no store of files", 60)
    return request.services.outputs
