"""Handlers for resource managers: outside schedulers register, send batches of updates, and follow events."""

from __future__ import annotations

from typing import Any

from fairlead.core.commands import RegisterManager, RemoveManager, UpdateManager
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.http.context import Request, caller_fields, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.http.routes.watch import lines, start_of
from fairlead.views.managers import manager_answers, waiting_answers
from fairlead.wire import api as wire
from fairlead.wire import operations as op

MAX_EXPLAINED = 1_000


@serves(op.Managers)
async def managers(request: Request, asked: op.Managers) -> wire.Managers:
    control = request.services.control
    return await control.find(asked.partition).read(lambda state: wire.Managers(managers=manager_answers(state)))


@serves(op.RegisterManager)
async def register(request: Request, asked: op.RegisterManager) -> wire.Done:
    control = request.services.control
    served = control.find(asked.partition)
    accepted = await served.execute(RegisterManager(name=asked.name, **caller_fields(request)))
    served.manager(asked.name)  # from now on its events are kept
    return wire.Done(note=accepted.note)


@serves(op.RemoveManager)
async def remove(request: Request, asked: op.RemoveManager) -> wire.Done:
    control = request.services.control
    served = control.find(asked.partition)
    command = RemoveManager(name=asked.name, **caller_fields(request, asked.key))
    try:
        accepted = await served.execute(command)
    except Refused as refusal:
        raise _as_missing(refusal) from None
    served.end_manager(asked.name)
    return wire.Done(note=accepted.note)


@serves(op.UpdateManager)
async def update(request: Request, asked: op.UpdateManager) -> wire.Updated:
    read = Reader(asked.document, "", "an update")
    items: dict[str, Any] = {}
    for what in ("nodes", "jobs", "recover", "asks", "releases"):
        value = read.get(what, [])
        if not isinstance(value, list):
            raise Refused(what, f"{shown(value)} is not a list; write [{{…}}, {{…}}]")
        items[what] = tuple(value)
    more = read.flag("more", False)
    read.close()
    control = request.services.control
    try:
        accepted = await control.find(asked.partition).execute(
            UpdateManager(name=asked.name, **items, more=more, **caller_fields(request))
        )
    except Refused as refusal:
        raise _as_missing(refusal) from None
    return wire.Updated(
        items=[
            wire.UpdateItem(what=item.what, name=item.name, accepted=item.accepted, reason=item.reason)
            for item in accepted.items
        ]
    )


@serves(op.ManagerState)
async def state_of(request: Request, asked: op.ManagerState) -> wire.ManagerState:
    served = request.services.control.find(asked.partition)
    return await served.state_of_manager(asked.name, lambda state: _known(state, asked.name))


@serves(op.ManagerWaiting)
async def waiting(request: Request, asked: op.ManagerWaiting) -> wire.WaitingJobs:
    read = Reader(asked.document, "", "a question")
    jobs = read.names("jobs", MAX_EXPLAINED)
    read.close()
    served = request.services.control.find(asked.partition)
    return await served.read(
        lambda state: wire.WaitingJobs(
            jobs=waiting_answers(_known(state, asked.name), asked.name, jobs, served.writer.reasons, served.now)
        )
    )


@serves(op.ManagerEvents)
async def events(request: Request, asked: op.ManagerEvents) -> Response:
    services = request.services
    served = services.control.find(asked.partition)
    await served.read(lambda state: _known(state, asked.name))
    feed = served.manager(asked.name)
    start = start_of(feed, asked.after, asked.last)
    return streamed(services, request.caller, lines(feed, start, lambda event: True))


def _known(state: Partition, manager: str) -> Partition:
    """Return the partition. Raise `Refused` if it has no such manager."""
    if manager not in state.managers:
        raise Refused("name", f"there is no resource manager {shown(manager)}; register it first", "missing")
    return state


def _as_missing(refusal: Refused) -> Refused:
    """Return the refusal as one that is answered with 404 if it says that there is no such manager."""
    if refusal.code == "unknown" and refusal.field == "name":
        return Refused(refusal.field, refusal.problem, "missing")
    return refusal
