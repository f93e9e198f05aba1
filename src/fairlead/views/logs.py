"""Logs: one line for each decision that a person may ask about, with its reason, from sealed plans.

`Logs` is an observer of writers. The application configures the logger, not this module. docs/metrics.md lists the
fields of each line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    QueuesSet,
    Regrouped,
    SettingsSet,
    Stopped,
)
from fairlead.core.commands import Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.model import KINDS
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND, format_duration
from fairlead.core.state import Partition

Line = tuple[int, str, dict[str, Any]]
"""Level, event and fields."""

LEVELS = {"info": INFO, "warning": WARNING}
"""Level names of changes → levels of `logging`."""


class Logs:
    """Writes the log lines of cycles; an observer of writers."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger: FilteringBoundLogger = logger.bind()  # bind once: a lazy logger would be bound by each call
        self._ready: dict[str, bool] = {}
        """Partition → True if its readiness was logged."""

    def began(self, partition: Partition) -> None:
        self._ready[partition.name] = partition.reign.ready
        fields = {"jobs": len(partition.jobs), "nodes": len(partition.nodes.rows), "ready": partition.reign.ready}
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
        if partition.reign.ready and not self._ready[partition.name]:
            self._ready[partition.name] = True
            yield INFO, "partition ready", {}
        yield from lines(decided, self._logger.is_enabled_for(INFO))
        if self._logger.is_enabled_for(DEBUG):
            for (job, stage, kind), reason in decided.reasons.items():
                yield DEBUG, "not placed", {"job": job, "stage": stage, "kind": KINDS[kind], "reason": str(reason)}


def lines(decided: Cycle, all_levels: bool) -> Iterator[Line]:
    """Yield the log lines of a cycle in order. Without `all_levels`, skip changes that cause no warnings."""
    for answer in decided.answers:
        if isinstance(answer, Rejected) and answer.code in ALARMS:
            yield ERROR, ALARMS[answer.code], {"reason": str(answer)}
    kinds = set(map(type, decided.changes))
    if not kinds.isdisjoint(CONFIGURATION):
        yield from _configuration(decided)
    done = decided.plan.done
    removed = {change.node_id: before.node.name for change, before in done if isinstance(change, NodeRemoved)}
    names = Names(decided.plan.partition, decided.plan.now, removed)
    for change, before in done:
        if all_levels or change.warns:
            for level, event, fields in change.lines(names, before):
                yield LEVELS[level], event, fields
    if Stopped in kinds:
        yield from _gangs(decided)


ALARMS = {"alarm": "unknown attempt", "foreign": "foreign report"}
"""Code of a refused report → event."""
CONFIGURATION = {
    SettingsSet: "settings",
    QueuesAdded: "queues",
    QueuesSet: "queues",
    PoolsSet: "pools",
    ConfigVersioned: "",
}


def _configuration(decided: Cycle) -> Iterator[Line]:
    """Yield one line for all changes of the configuration in a cycle."""
    parts = [CONFIGURATION[type(change)] for change in decided.changes if type(change) in CONFIGURATION]
    if parts:
        changed = sorted({part for part in parts if part})
        version = decided.plan.partition.config_version
        yield INFO, "configuration applied", {"version": version, "changed": changed}


def _gangs(decided: Cycle) -> Iterator[Line]:
    """Yield one line for each gang that is taken back, with the number of its tasks that are told to stop."""
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
        # Without a task that ended in this cycle, the gang was short of workers for too long.
        fields = {"tasks": tasks[job, name], "reason": reason or f"it was short of workers for {within}"}
        yield WARNING, "gang start undone", {"job": job, "stage": name, **fields}
