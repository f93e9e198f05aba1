"""Handlers for the servers of a cluster that share a database: list, drain and enable them."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.params import PathParameter

from fairlead.api.context import OPERATORS, services_of
from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.journal.codec import stream_of
from fairlead.journal.roster import Member
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]
ServerId = Annotated[str, PathParameter(max_length=63)]


@get("/servers", operation_id="servers", guards=[OPERATORS], summary="Servers")
async def servers(request: HttpRequest) -> wire.Servers:
    """List the servers that are up and share the database, with the partitions that each leads.

    A server without a database is the only one and is listed without an address.
    """
    control = services_of(request).control
    return wire.Servers(servers=[_answer(request, member) for member in control.standing.members])


@post("/servers/{server:str}/drain", operation_id="drainServer", guards=[OPERATORS], status_code=200)
async def drain_server(request: HttpRequest, server: ServerId) -> wire.Done:
    """Drain a server: it gives up its partitions and can then be stopped. It keeps answering reads."""
    return await _drain(request, server, True)


@post("/servers/{server:str}/enable", operation_id="enableServer", guards=[OPERATORS], status_code=200)
async def enable_server(request: HttpRequest, server: ServerId) -> wire.Done:
    """Let a drained server lead partitions again."""
    return await _drain(request, server, False)


async def _drain(request: HttpRequest, server: str, draining: bool) -> wire.Done:
    control = services_of(request).control
    if server not in [member.id for member in control.standing.members]:
        raise Refused("server", f"there is no server {shown(server)}; `fairlead server list` shows them", "missing")
    if not await control.drain(server, draining):
        raise Refused("server", "no other server is up that could lead; start another one first", "conflict")
    return wire.Done()


def _answer(request: HttpRequest, member: Member) -> wire.Server:
    control = services_of(request).control
    leads = [name for name in control.names() if control.standing.holder(stream_of(name)) == member.id]
    state = "draining" if member.draining and leads else "drained" if member.draining else "up"
    return wire.Server(id=member.id, url=member.address, state=state, leads=leads or _alone(request, member))


def _alone(request: HttpRequest, member: Member) -> list[str]:
    """Return the partitions of a server that does not share a database."""
    return [] if member.address else services_of(request).control.led()


HANDLERS = [servers, drain_server, enable_server]
