"""Confirmations: a change that affects the work of other users is refused once, with what it would do and a code.

Sent again with the code, it is carried out. The code is a signature of the server over the caller, the change and what
it would do: another change, or one that would meanwhile do more, needs another code. Tokens can require this, and a
request can ask for it with `Fairlead-Confirm: ask`.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgspec

from fairlead.core.commands import Rejected, SetPriority
from fairlead.core.errors import Refused
from fairlead.core.model import Allocation
from fairlead.core.state import Partition
from fairlead.http.context import Request, caller_fields
from fairlead.http.responses import Unconfirmed
from fairlead.http.routes.jobs import SEARCHING, submission
from fairlead.views.dryrun import stopped_by
from fairlead.wire import operations as op
from fairlead.wire.operation import Change, Row

HEADER = "fairlead-confirm"
TRIED = 20
"""Jobs of one request that are tried on a copy of the state."""
SHOWN = 10
"""Jobs that are named."""


async def confirm(request: Request, row: Row, asked: Any) -> None:
    """Raise `Unconfirmed` if a change affects the work of other users, needs a confirmation and has none."""
    given = request.header(HEADER)
    if not row.route.changes or not (request.caller.confirm or given):
        return
    effect = await _effect(request, row, asked)
    if effect and not hmac.compare_digest(given.encode(), (code := _code(request, asked, effect)).encode()):
        raise Unconfirmed(effect, code)


def _code(request: Request, asked: Any, effect: str) -> str:
    # Each request has its own key.
    same = msgspec.structs.replace(asked, key="", confirm="") if isinstance(asked, Change) else asked
    text = b"\n".join(
        (b"confirmation", request.caller.id.encode(), type(asked).__name__.encode(), msgspec.json.encode(same))
    )
    seed = request.services.secrets.gang_seed
    return hmac.digest(seed, text + effect.encode(), hashlib.sha256).hex()[:16]


async def _effect(request: Request, row: Row, asked: Any) -> str:
    """Return what a change would do to the work of other users; empty if it does nothing to it."""
    if row.route.role != "user":
        return f"{row.operation_id} is a change by an operator, which concerns all users: {row.summary}"
    if row.operation in (op.Submit, op.SubmitMany, op.SubmitPipeline):
        return await _of_submission(request, asked)
    name = getattr(asked, "job", "") or _named(getattr(asked, "document", None), "job")
    served = request.leader(asked)
    job = served.partition.jobs.get(name) if name else None
    if job is None or not request.sees(job):
        return ""  # the handler refuses it
    if job.user != request.caller.user and row.operation is not op.Rerun:
        return f"{row.name.replace('_', ' ')} would change job {job.id} of {job.user}"
    priority = _named(getattr(asked, "document", None), "priority")
    if not isinstance(priority, int) or row.operation not in (op.SetPriority, op.UpdateJob):
        return ""
    command = SetPriority(job=name, priority=priority, **caller_fields(request))
    return await _stops(request, asked, lambda state: stopped_by(state, command, served.now))


async def _of_submission(request: Request, asked: Any) -> str:
    documents = [asked.document] if isinstance(asked, op.Submit) else _named(asked.document, "jobs")
    if isinstance(documents, list) and len(documents) > TRIED:
        return f"it would submit {len(documents)} jobs, which are too many to find out first what they stop"
    effects = []
    for document in documents if isinstance(documents, list) else ():
        try:
            command = submission(request, document, "", {})
        except Refused:
            continue  # the handler refuses it
        served = request.leader(asked)

        def attempt(state: Partition, command: Any = command, now: int = served.now) -> list[Allocation] | Rejected:
            return stopped_by(state, command, now)

        effects.append(await _stops(request, asked, attempt))
    return "; ".join(dict.fromkeys(filter(None, effects)))


async def _stops(request: Request, asked: Any, attempt: Any) -> str:
    """Return which jobs of other users would lose tasks, by a trial on a copy of the state; empty if none would."""
    user = request.caller.user

    def look(state: Partition) -> bytes:
        found = attempt(state)
        jobs = [] if isinstance(found, Rejected) else [each.stage.job for each in found]
        others = {job.id: job for job in jobs if job.user != user}
        seen = [f"job {job.id} of {job.user}" for job in others.values() if request.sees(job)][:SHOWN]
        hidden = len(others) - len(seen)
        more = [f"{hidden} job{'s' if hidden > 1 else ''} of other users"] if hidden else []
        return msgspec.json.encode(seen + more)

    stopped: list[str] = msgspec.json.decode(await request.leader(asked).on_copy(look, SEARCHING) or b"[]")
    return f"it would stop tasks of {', '.join(stopped)}" if stopped else ""


def _named(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None
