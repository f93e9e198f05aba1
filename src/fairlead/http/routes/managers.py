"""Handlers for resource managers: outside schedulers register, send batches of updates, and follow events."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.commands import RegisterManager, RemoveManager, UpdateManager
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.http.context import Request, change, execute, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.http.routes.watch import lines, start_of
from fairlead.views.answers import all_queues
from fairlead.views.manager_answers import manager_answers, waiting_answers
from fairlead.wire import api as wire
from fairlead.wire import operations as op

MAX_EXPLAINED = 1_000


@serves(op.Managers)
async def managers(request: Request, asked: op.Managers) -> wire.Managers:
    return await request.leader(asked).read(lambda state: wire.Managers(managers=manager_answers(state)))


@serves(op.RegisterManager)
async def register(request: Request, asked: op.RegisterManager) -> wire.Done:
    served = request.leader(asked)
    done = await change(request, asked, RegisterManager(name=asked.name), "name")
    served.manager(asked.name)  # from now on its events are kept
    return done


@serves(op.RemoveManager)
async def remove(request: Request, asked: op.RemoveManager) -> wire.Done:
    served = request.leader(asked)
    done = await change(request, asked, RemoveManager(name=asked.name), "name")
    served.end_manager(asked.name)
    return done


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
    spare = read.names("spare", most=100_000) if "spare" in read.doc else None
    read.close()
    accepted = await execute(request, asked, UpdateManager(name=asked.name, **items, more=more, spare=spare), "name")
    return msgspec.convert(accepted, wire.Updated, from_attributes=True)


@serves(op.ManagerState)
async def state_of(request: Request, asked: op.ManagerState) -> wire.ManagerState:
    served = request.leader(asked)
    return await served.state_of_manager(asked.name, lambda state: _known(state, asked.name))


@serves(op.ManagerWaiting)
async def waiting(request: Request, asked: op.ManagerWaiting) -> wire.WaitingJobs:
    read = Reader(asked.document, "", "a question")
    jobs = read.names("jobs", MAX_EXPLAINED)
    read.close()
    served = request.leader(asked)
    return await served.read(
        lambda state: wire.WaitingJobs(
            jobs=waiting_answers(_known(state, asked.name), asked.name, jobs, served.writer.reasons, served.now)
        )
    )


@serves(op.ManagerQueues)
async def queues(request: Request, asked: op.ManagerQueues) -> wire.Queues:
    served = request.leader(asked)
    return await served.read(lambda state: all_queues(_known(state, asked.name), served.now))


@serves(op.ManagerEvents)
async def events(request: Request, asked: op.ManagerEvents) -> Response:
    served = request.leader(asked)
    await served.read(lambda state: _known(state, asked.name))
    feed = served.manager(asked.name)
    start = start_of(feed, asked.after, asked.last)
    return streamed(request, lines(feed, start, lambda event: True))


def _known(state: Partition, manager: str) -> Partition:
    """Return the partition. Raise `Refused` if it has no manager of this name."""
    if manager not in state.managers:
        raise Refused("name", f"there is no resource manager {shown(manager)}; register it first", "missing")
    return state
