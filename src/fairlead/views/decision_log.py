"""Logs: one line for each decision that a person may ask about, with its reason, from sealed plans.

`Logs` is an observer of writers. The application configures the logger, not this module. docs/metrics.md lists the
fields of each line. Changes describe themselves; here, many equal lines of a cycle become one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from structlog.typing import FilteringBoundLogger

from fairlead.core.changes import (
    ConfigVersioned,
    Ended,
    EndedUndo,
    MovedUndo,
    Names,
    NodeRemoved,
    PoolsSet,
    QueuesAdded,
    QueuesRemoved,
    QueuesSet,
    Regrouped,
    SettingsSet,
    Stopped,
)
from fairlead.core.changes.change import NAMED
from fairlead.core.commands import Accepted, BringToFront, Command, MarkReady, Report, ResetLane, UpdateManager
from fairlead.core.cycle import Cycle
from fairlead.core.model import KINDS
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND, format_duration
from fairlead.core.state import Partition

Fields = dict[str, Any]
Line = tuple[int, str, Fields]
"""Level, event and fields."""

LEVELS = {"info": INFO, "warning": WARNING}
"""Level of a line of a change → level of `logging`."""


class Logs:
    """Writes the log lines of cycles; an observer of writers."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger: FilteringBoundLogger = logger.bind()  # bind once: a lazy logger would be bound by each call
        self._ready: dict[str, bool] = {}
        """Partition → True if the log says already that it is ready."""

    def began(self, partition: Partition) -> None:
        self._ready[partition.name] = partition.readiness.ready
        fields = {"jobs": len(partition.jobs), "nodes": len(partition.nodes.rows), "ready": partition.readiness.ready}
        self._logger.info("writer began", partition=partition.name, at=partition.now / SECOND, **fields)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        common = {"partition": partition.name, "at": decided.plan.now / SECOND}
        for level, event, fields in self._lines(decided):
            self._logger.log(level, event, **common, **fields)

    def stopped(self, partition: Partition, why: str) -> None:
        self._logger.error("writer stopped", partition=partition.name, at=partition.now / SECOND, reason=why)

    def _lines(self, decided: Cycle) -> Iterator[Line]:
        partition = decided.plan.partition
        if partition.readiness.ready and not self._ready[partition.name]:
            self._ready[partition.name] = True
            declared = [command.user for command in decided.commands if isinstance(command, MarkReady)]
            yield INFO, "partition ready", _by(declared[0]) if declared else {}
        yield from lines(decided, self._logger.is_enabled_for(INFO))
        if self._logger.is_enabled_for(DEBUG):
            for (job, stage, kind), reason in decided.reasons.items():
                yield DEBUG, "not placed", {"job": job, "stage": stage, "kind": KINDS[kind], "reason": str(reason)}


def lines(decided: Cycle, all_levels: bool) -> Iterator[Line]:
    """Yield the log lines of a cycle in order. Without `all_levels`, skip changes that never warn."""
    yield from _answers(decided, all_levels)
    kinds = set(map(type, decided.changes))
    if all_levels and not kinds.isdisjoint(CONFIGURATION):
        yield from _configuration(decided)
    yield from _merged(_changes(decided, all_levels)) if all_levels else _changes(decided, all_levels)
    if Stopped in kinds:
        yield from _gangs(decided)


# -- commands ----------------------------------------------------------------------------------------------------

ALARMS = {"alarm": "unknown attempt", "foreign": "foreign report"}
"""Code of a refused report → event."""


def _answers(decided: Cycle, all_levels: bool) -> Iterator[Line]:
    """Yield alarms, and the lines of commands that were refused or that no change describes."""
    refused: Tally[tuple[str, str, str]] = Tally()
    alarms: dict[str, list[str]] = {}
    first = 0
    for command, answer, last in zip(decided.commands, decided.answers, decided.marks, strict=True):
        if isinstance(answer, Accepted):
            yield from _accepted(command, answer, last > first) if all_levels else ()
        elif not isinstance(command, Report):
            refused[str(command.__struct_config__.tag), command.user, str(answer)] += 1
        elif answer.code in ALARMS:
            alarms.setdefault(ALARMS[answer.code], []).append(str(answer))
        first = last
    for event, reasons in alarms.items():
        more = {"times": len(reasons)} if len(reasons) > 1 else {}
        yield ERROR, event, {"reason": reasons[0], **more}
    for (what, user, problem), times in refused.items() if all_levels else ():
        yield INFO, "command refused", {"command": what, "problem": problem, "times": times, **_by(user)}


def _accepted(command: Command, answer: Accepted, changed: bool) -> Iterator[Line]:
    """Yield the line of an accepted command that no change describes."""
    if isinstance(command, BringToFront) and changed:
        yield INFO, "asks brought to front", {"job": command.job, "stage": command.stage, **_by(command.user)}
    elif isinstance(command, ResetLane) and changed:
        fields = {"queue": command.queue, "job": command.job, "cancelled": command.cancel}
        yield INFO, "lane reset", {**fields, **_by(command.user)}
    elif isinstance(command, UpdateManager):
        reasons = [item.reason for item in answer.items if not item.accepted]
        if reasons:
            fields = {"manager": command.name, "items": len(reasons), "problem": reasons[0]}
            yield INFO, "manager items refused", {**fields, **_by(command.user)}


def _by(user: str) -> Fields:
    return {"by": user} if user else {}


# -- changes -----------------------------------------------------------------------------------------------------


def _changes(decided: Cycle, all_levels: bool) -> Iterator[Line]:
    done = decided.plan.done
    removed = {change.node_id: before.node.name for change, before in done if isinstance(change, NodeRemoved)}
    names = Names(decided.plan.partition, decided.plan.now, removed)
    for position, (change, before) in enumerate(done):
        if all_levels or change.warns:
            for level, event, fields in change.lines(names, before):
                user = _user_of(decided, position)
                if user and user != fields.get("user"):
                    fields["by"] = user
                yield LEVELS[level], event, fields


def _user_of(decided: Cycle, position: int) -> str:
    """Return the user of the command that caused the change at a position; empty if none did."""
    at = bisect_right(decided.marks, position)
    return decided.commands[at].user if at < len(decided.commands) else ""


CONFIGURATION = {
    SettingsSet: "settings",
    QueuesAdded: "queues",
    QueuesSet: "queues",
    QueuesRemoved: "queues",
    PoolsSet: "pools",
    ConfigVersioned: "",
}


def _configuration(decided: Cycle) -> Iterator[Line]:
    """Yield one line for all changes of the configuration in a cycle."""
    positions = [at for at, change in enumerate(decided.changes) if type(change) in CONFIGURATION]
    changed = sorted({CONFIGURATION[type(decided.changes[at])] for at in positions} - {""})
    version = decided.plan.partition.config_version
    yield (
        INFO,
        "configuration applied",
        {"version": version, "changed": changed, **_by(_user_of(decided, positions[0]))},
    )


def _gangs(decided: Cycle) -> Iterator[Line]:
    """Yield one line for each gang that is taken back, with the number of its tasks that must stop."""
    regrouped = {change.job for change, _ in decided.plan.done if isinstance(change, Regrouped)}
    reasons: dict[tuple[str, str], str] = {}
    stopped: dict[tuple[str, str], str] = {}
    tasks: dict[tuple[str, str], int] = {}
    for change, before in decided.plan.done:
        if isinstance(change, Ended | Stopped):
            undo: EndedUndo | MovedUndo = before
            stage = undo.allocation.stage
            # Tasks that were added to one stage of a whole job are a gang of their own.
            gang = (stage.job.id, "all" if stage.job.whole and stage.job.id in regrouped else stage.name)
            if isinstance(change, Ended):
                reasons[gang] = change.reason
            elif change.cause == "gang":
                stopped.setdefault(gang, reasons.get(gang, ""))
                tasks[gang] = tasks.get(gang, 0) + count(change.indices)
    within = format_duration(decided.plan.partition.settings.replace_within)
    for (job, name), reason in stopped.items():
        # Without a task that ended in this cycle, the gang had too few tasks for too long.
        fields = {"tasks": tasks[job, name], "reason": reason or f"it had too few tasks for {within}"}
        yield WARNING, "gang start undone", {"job": job, "stage": name, **fields}


# -- floods ------------------------------------------------------------------------------------------------------

FEW = 8
"""Up to this number of one-task jobs, or of single tasks, each gets a line."""
SUBMITTED, PLACED, STOPPED = "job submitted", "tasks placed", "tasks stopped"
PLACED_SINGLES = "single tasks placed"


def _merged(all_lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines of a cycle. Many equal lines in a row become one."""
    for kind, run in groupby(all_lines, key=_kind_of_flood):
        if kind == SUBMITTED:
            yield from _submissions([fields for _, _, fields in run])
        elif kind == PLACED:
            yield from _placements(list(run))
        elif kind == STOPPED:
            yield from _stops([fields for _, _, fields in run])
        else:
            yield from run


def _kind_of_flood(line: Line) -> str:
    """Return the event of a line that may become one with others; empty for other lines."""
    _, event, fields = line
    if event == SUBMITTED:
        return SUBMITTED if fields["tasks"] == 1 and not fields["after"] else ""
    if event == PLACED:
        return PLACED if fields["tasks"] == 1 and fields["kind"] == "new" and not fields["gang"] else ""
    return PLACED if event == PLACED_SINGLES else STOPPED if event == STOPPED else ""


def _submissions(run: list[Fields]) -> Iterator[Line]:
    """Yield one line for more than `FEW` one-task jobs of a user, queue and priority; otherwise a line for each."""
    floods: dict[tuple[object, ...], list[Fields]] = {}
    for fields in run:
        key = (fields["user"], fields["queue"], fields["priority"], fields.get("by"))
        floods.setdefault(key, []).append(fields)
    for flood in floods.values():
        if len(flood) <= FEW:
            yield from ((INFO, SUBMITTED, fields) for fields in flood)
        else:
            shared = {name: value for name, value in flood[0].items() if name in ("user", "queue", "priority", "by")}
            jobs = {"jobs": len(flood), "first": flood[0]["job"], "last": flood[-1]["job"]}
            yield INFO, "single jobs submitted", {**shared, **jobs}


def _placements(run: list[Line]) -> Iterator[Line]:
    """Yield one line for more than `FEW` single tasks of a queue; otherwise a line for each."""
    if len(run) <= FEW and all(event == PLACED for _, event, _ in run):
        yield from run
        return
    queues: dict[str, list[Fields]] = {}
    for _, _, fields in run:
        queues.setdefault(fields["queue"], []).append(fields)
    for queue, parts in queues.items():
        summed = {"queue": queue, **_summed(parts)}
        jobs = {"first": parts[0].get("job") or parts[0]["first"], "last": parts[-1].get("job") or parts[-1]["last"]}
        waited = max(fields["waited_seconds"] or 0 for fields in parts)
        yield INFO, PLACED_SINGLES, {**summed, **jobs, "waited_seconds": waited}


def _stops(run: list[Fields]) -> Iterator[Line]:
    """Yield one line for all tasks of a stage that stop for the same cause."""
    for _, alike in groupby(run, key=lambda fields: [fields[name] for name in ("job", "stage", "cause", "for")]):
        parts = list(alike)
        yield INFO, STOPPED, {**parts[0], **_summed(parts)}


def _summed(parts: list[Fields]) -> Fields:
    nodes = dict.fromkeys(node for fields in parts for node in fields["on"])
    tasks = sum(fields["tasks"] for fields in parts)
    return {"tasks": tasks, "nodes": len(nodes), "on": list(nodes)[:NAMED]}
