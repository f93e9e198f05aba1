"""Handlers for resource managers: outside schedulers register, send batches of updates, and follow events."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.params import PathParameter
from litestar.response import Stream

from fairlead.api.context import OPERATORS, Key, PartitionName, Shaped, caller_fields, caller_of, services_of, streamed
from fairlead.api.watch import After, LastEvent, lines, start_of
from fairlead.core.commands import RegisterManager, RemoveManager, UpdateManager
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.views.managers import manager_answers, waiting_answers
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]
MAX_EXPLAINED = 1_000
ManagerName = Annotated[str, PathParameter(max_length=63)]


@get("/managers", operation_id="managers", guards=[OPERATORS], summary="Resource managers")
async def managers(request: HttpRequest, partition: PartitionName = "") -> wire.Managers:
    """List the registered managers with their numbers of nodes."""
    control = services_of(request).control
    return await control.find(partition).read(lambda state: wire.Managers(managers=manager_answers(state)))


@post("/managers/{manager:str}", operation_id="registerManager", guards=[OPERATORS], status_code=200)
async def register(request: HttpRequest, manager: ManagerName, partition: PartitionName = "") -> wire.Done:
    """Register a manager, for the first time or after a restart. The manager then sends its state."""
    control = services_of(request).control
    served = control.find(partition)
    accepted = await control.execute(served, RegisterManager(name=manager, **caller_fields(request)))
    served.manager(manager)  # from now on its events are kept
    return wire.Done(note=accepted.note)


@delete("/managers/{manager:str}", operation_id="removeManager", guards=[OPERATORS], status_code=200)
async def remove(
    request: HttpRequest, manager: ManagerName, partition: PartitionName = "", key: Key = None
) -> wire.Done:
    """Remove a manager that will not return: its jobs are killed and its nodes leave."""
    control = services_of(request).control
    served = control.find(partition)
    command = RemoveManager(name=manager, **caller_fields(request, key))
    try:
        accepted = await control.execute(served, command)
    except Refused as refusal:
        raise _as_missing(refusal) from None
    served.end_manager(manager)
    return wire.Done(note=accepted.note)


@post("/managers/{manager:str}/updates", operation_id="updateManager", guards=[OPERATORS], status_code=200)
async def update(
    request: HttpRequest,
    manager: ManagerName,
    data: Annotated[Any, Shaped(wire.UpdateDocument)],
    partition: PartitionName = "",
) -> wire.Updated:
    """Apply a batch of nodes, jobs, allocations to recover, asks and releases. Each item has its own answer."""
    read = Reader(data, "", "an update")
    items: dict[str, Any] = {}
    for what in ("nodes", "jobs", "recover", "asks", "releases"):
        value = read.get(what, [])
        if not isinstance(value, list):
            raise Refused(what, f"{shown(value)} is not a list; write [{{…}}, {{…}}]")
        items[what] = tuple(value)
    more = read.flag("more", False)
    read.close()
    control = services_of(request).control
    try:
        accepted = await control.execute(
            control.find(partition), UpdateManager(name=manager, **items, more=more, **caller_fields(request))
        )
    except Refused as refusal:
        raise _as_missing(refusal) from None
    return wire.Updated(
        items=[
            wire.UpdateItem(what=item.what, name=item.name, accepted=item.accepted, reason=item.reason)
            for item in accepted.items
        ]
    )


@get("/managers/{manager:str}/state", operation_id="managerState", guards=[OPERATORS], summary="The state of a manager")
async def state_of(request: HttpRequest, manager: ManagerName, partition: PartitionName = "") -> wire.ManagerState:
    """Return the nodes, jobs and tasks of a manager as the partition knows them. Managers read this when they start."""
    served = services_of(request).control.find(partition)
    return await served.state_of_manager(manager, lambda state: _known(state, manager))


@post(
    "/managers/{manager:str}/waiting",
    operation_id="managerWaiting",
    guards=[OPERATORS],
    status_code=200,
    summary="Why jobs of a manager wait",
)
async def waiting(
    request: HttpRequest,
    manager: ManagerName,
    data: Annotated[Any, Shaped(wire.WaitingJobsDocument)],
    partition: PartitionName = "",
) -> wire.WaitingJobs:
    """Explain why jobs of a manager wait, for many jobs at once."""
    read = Reader(data, "", "a question")
    jobs = read.names("jobs", MAX_EXPLAINED)
    read.close()
    served = services_of(request).control.find(partition)
    return await served.read(
        lambda state: wire.WaitingJobs(
            jobs=waiting_answers(_known(state, manager), manager, jobs, served.writer.reasons, served.now)
        )
    )


@get(
    "/managers/{manager:str}/events",
    operation_id="managerEvents",
    guards=[OPERATORS],
    media_type="text/event-stream",
    summary="Events for a manager",
)
async def events(
    request: HttpRequest,
    manager: ManagerName,
    partition: PartitionName = "",
    after: After = None,
    last: LastEvent = None,
) -> Stream:
    """Stream server-sent events: allocated, release, released, ended, node. `reset`: events were missed, read the state
    again."""
    services = services_of(request)
    served = services.control.find(partition)
    await served.read(lambda state: _known(state, manager))
    feed = served.manager(manager)
    start = start_of(feed, after, last)
    return streamed(services, caller_of(request), lines(feed, start, lambda event: True))


def _known(state: Partition, manager: str) -> Partition:
    """Return the partition. Raise `Refused` if it has no such manager."""
    if manager not in state.managers:
        raise Refused("name", f"there is no resource manager {shown(manager)}; register it first", "missing")
    return state


def _as_missing(refusal: Refused) -> Refused:
    """Return a refusal, changed so that it is answered with 404 if it says that the named manager is unknown."""
    if refusal.code == "unknown" and refusal.field == "name":
        return Refused(refusal.field, refusal.problem, "missing")
    return refusal


HANDLERS = [managers, register, remove, update, state_of, waiting, events]
