"""Watches from the agents' side that gangs are launched whole or not at all: a stage, or all stages of a whole job.

It sees messages only: launches, stops and the reports of agents. A gang that starts, or was taken back, has all the
tasks that it needs launched in one cycle.
"""

from __future__ import annotations

from typing import Any

from fairlead.core.commands import Command, Report
from fairlead.core.cycle import Cycle
from fairlead.core.effects import ForNode, Launch, Stop
from fairlead.core.model import Stage
from fairlead.core.ranges import indices
from fairlead.core.state import Partition
from fairlead.testing import World

Unit = tuple[int, str]
"""A job's number and the stage; no stage if the whole job is one gang."""


class Gang:
    """The launches with which a gang started."""

    def __init__(self, members: dict[tuple[str, int], int]) -> None:
        self.members = members
        """(Stage, index) → the attempt."""
        self.silent = dict(members) if len(members) > 1 else {}
        """Tasks without a report. A task that starts alone is no gang."""
        self.taken_back = False

    def told_to_stop(self, stop: Stop) -> None:
        for index in indices(stop.indices):
            if self.members.get((stop.stage, index)) == stop.attempt:
                self.silent.pop((stop.stage, index), None)
                self.taken_back |= stop.cause == "gang"

    def reported(self, report: Report) -> None:
        for index in indices(report.indices):
            if self.silent.get((report.stage, index)) == report.attempt:
                del self.silent[report.stage, index]


class WatchedWorld(World):
    """A world in which a gang that is launched in part fails the test."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        self.gangs: dict[Unit, Gang] = {}
        self.started: set[Unit] = set()
        super().__init__(*args, **rest)
        self._wrap_fleet()

    def _wrap_fleet(self) -> None:
        fleet = self.fleets["default"]
        reports = fleet.reports

        def watched_reports(now: int) -> list[Command]:
            commands = reports(now)
            self._note_reports(commands)
            return commands

        fleet.reports = watched_reports  # type: ignore[method-assign]

    def _open(self) -> None:
        super()._open()
        # Messages sent before a crash may have been delivered without being seen here.
        self.gangs.clear()
        for writer in self.cluster.writers.values():
            self._look(writer.partition)

    def _send(self, where: str, command: Command) -> None:
        super()._send(where, command)
        self._note_reports([command])

    def _deliver(self, name: str, done: Cycle) -> None:
        super()._deliver(name, done)
        partition = self.cluster.writers[name].partition
        messages = [effect for effect in done.effects if isinstance(effect, ForNode)]
        units = {job.number: job.whole for job in partition.jobs.values()}
        for stop in (stop for message in messages for stop in message.stops):
            gang = self.gangs.get((stop.number, "" if units.get(stop.number) else stop.stage))
            if gang is not None:
                gang.told_to_stop(stop)
        launches: dict[Unit, list[Launch]] = {}
        for launch in (launch for message in messages for launch in message.launches):
            unit = (launch.number, "" if units[launch.number] else launch.stage)
            launches.setdefault(unit, []).append(launch)
        for unit, launched in launches.items():
            self._check(partition, unit, launched)
        self._look(partition)

    def _check(self, partition: Partition, unit: Unit, launched: list[Launch]) -> None:
        attempts = {(each.stage, index): each.attempt for each in launched for index in indices(each.indices)}
        gang = self.gangs.get(unit)
        again = gang is not None and (gang.taken_back or any(member in gang.silent for member in attempts))
        if unit in self.started and not again:
            return
        members: dict[tuple[str, int], int] = {}
        for stage in _stages(partition, unit):
            found = sorted(index for name, index in attempts if name == stage.name)
            what = f"{len(found)} of {stage.needed} {stage.name} of job {stage.job.id}"
            assert len(found) >= stage.needed, f"{what} are launched"
            # Tasks beyond the minimum were launched one by one, in the same cycle.
            members |= {(stage.name, index): attempts[stage.name, index] for index in found[: stage.needed]}
        self.gangs[unit] = Gang(members)

    def _look(self, partition: Partition) -> None:
        """Note the gangs that have started by now."""
        self.started = {
            (job.number, "" if job.whole else stage.name)
            for job in partition.jobs.values()
            for stage in job.stages
            if stage.started
        }

    def _note_reports(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Report) and command.state in ("running", "succeeded", "failed"):
                for (number, stage), gang in self.gangs.items():
                    if command.number in (0, number) and stage in ("", command.stage):
                        gang.reported(command)


def _stages(partition: Partition, unit: Unit) -> list[Stage]:
    number, name = unit
    job = next(job for job in partition.jobs.values() if job.number == number)
    return [stage for stage in job.stages if name in ("", stage.name)]


class Restarted(WatchedWorld):
    """A world that starts a new writer after every cycle that wrote a record."""

    def cycle(self) -> None:
        before = self.cluster.writers["default"].seq
        super().cycle()
        if self.cluster.writers["default"].seq != before:
            self.restart()
