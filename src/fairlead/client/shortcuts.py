"""Methods of both clients that need one operation, but more than `make generate` can write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from fairlead.client.calls import Document, Moment, Problem, given, job_document, part, seconds_of
from fairlead.client.methods import Methods
from fairlead.wire import api as wire
from fairlead.wire import operations as op


class Shortcuts(Methods):
    """Methods that send one operation, or read one list, and return a part of the answer."""

    def dry_run(
        self, /, command: list[str] | None = None, document: Document | None = None, eta: bool = False, **fields: Any
    ) -> wire.DryRun:
        """Return what the next cycle would do with a job, without submitting it. Arguments are as for `submit`.

        With `eta`, the predicted start is added if the job would wait; that takes longer.
        """
        return self.send(op.DryRun(document=job_document(command, document, fields), eta=eta))

    def tasks(self, job: str, stage: str = "") -> Iterator[wire.Task]:
        """Yield the tasks of a job, or of one of its stages, ordered by index."""
        for page in self.pages(op.Tasks(job=job, stage=stage, limit=1000)):
            yield from page.tasks

    def eta(self, *jobs: str) -> list[wire.Eta]:
        """Return the predicted starts of up to 1,000 jobs: a likely time and a 90 % interval each."""
        names = [part(name, f"jobs[{at}]") for at, name in enumerate(jobs)]
        found = self.send(op.Etas(document=given(jobs=names))).etas
        by_name = dict(zip(dict.fromkeys(jobs), found, strict=True))  # the server answers each name once
        return [by_name[name] for name in jobs]

    def what_if(self, /, **changes: Any) -> wire.WhatIf:
        """Return how a supposed change would alter the start times of jobs. Only for operators.

        The keys are those of `WhatIfDocument`: `add_nodes`, `remove_nodes`, `shares`, `priorities`, `policy`, `replay`
        and `without`.
        """
        replay = changes.get("replay")
        if isinstance(replay, float) and not isfinite(replay):  # JSON has no such number
            problem = f"{replay} is not a period; write one such as 7d, or leave it out"
            raise Problem(problem, 422, "invalid", "replay")
        return self.send(op.WhatIf(document=given(**changes)))

    def attempts(self, job: str) -> wire.Attempts:
        """Return the ended attempts of a job's tasks: where and when they ran, and how they ended.

        `tasks` of an attempt are the indices of its tasks, such as `[3]`; `indices` are the same as ranges, `[3, 4]`.
        """
        return self.send(op.Attempts(job=job, limit=1000))

    def partitions(self) -> list[str]:
        """Return the names of the partitions."""
        return [partition.name for partition in self.send(op.Partitions()).partitions]

    def lanes(self, first: int = 10) -> wire.Lanes:
        """Return the waiting tasks by lane (queue and shape), with the first `first` asks of each lane."""
        return self.send(op.Lanes(first=first))

    def holds(self) -> list[wire.Hold]:
        """Return the holds: nodes kept free for jobs that have waited too long."""
        return self.send(op.Holds()).holds

    def promises(self) -> list[wire.Promise]:
        """Return the promises: nodes whose capacity is reserved for one job as soon as it becomes free."""
        return self.send(op.Holds()).promises

    def pools(self) -> list[wire.Pool]:
        """Return the pools with their nodes and orders."""
        return self.send(op.Pools()).pools

    def pause_pool(self, pool: str) -> str:
        """Pause a pool: it no longer grows or shrinks by itself."""
        return self.send(op.MovePool(pool=pool, action="pause")).note

    def resume_pool(self, pool: str) -> str:
        """Let a paused pool grow and shrink again."""
        return self.send(op.MovePool(pool=pool, action="resume")).note

    def usage_report(
        self,
        by: Iterable[str] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        user: str = "",
        used: bool = False,
    ) -> wire.UsageReport:
        """Return resource use, waits and preemptions in a period, by group and in total.

        `by` is `user`, `queue`, `partition` or `job`, or several of them. With `used`, the report also has the measured
        use of ended attempts, and jobs that asked for much more.
        """
        if isinstance(by, str):
            raise TypeError(f"by is text; write {by.split(',')}")
        groups = ",".join(by)
        return self.send(
            op.UsageReport(by=groups, since=seconds_of(since), until=seconds_of(until), user=user, used=used)
        )
