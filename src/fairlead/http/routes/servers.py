"""Handlers for servers: which server leads what; drain and enable servers."""

from __future__ import annotations

from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.journal.codec import stream_of
from fairlead.journal.roster import Member
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Servers)
async def servers(request: Request, asked: op.Servers) -> wire.Servers:
    control = request.services.control
    return wire.Servers(servers=[_answer(request, member) for member in control.membership.members])


@serves(op.DrainServer)
async def drain_server(request: Request, asked: op.DrainServer) -> wire.Done:
    return await _drain(request, asked.server, True)


@serves(op.EnableServer)
async def enable_server(request: Request, asked: op.EnableServer) -> wire.Done:
    return await _drain(request, asked.server, False)


async def _drain(request: Request, server: str, draining: bool) -> wire.Done:
    control = request.services.control
    if server not in [member.id for member in control.membership.members]:
        raise Refused("server", f"there is no server {shown(server)}; `fairlead server list` shows them", "missing")
    if not await control.drain(server, draining):
        raise Refused("server", "no other server is up that could lead; start another one first", "conflict")
    return wire.Done()


def _answer(request: Request, member: Member) -> wire.Server:
    control = request.services.control
    leads = [name for name in control.names() if control.membership.holder(stream_of(name)) == member.id]
    state = "draining" if member.draining and leads else "drained" if member.draining else "up"
    if not member.address:  # the server shares no database, so it holds no leases
        leads = leads or control.led()
    version = member.program if member.id != control.membership.me else request.services.version
    return wire.Server(id=member.id, url=member.address, state=state, leads=leads, version=version)
