"""`World`: a small cluster on a virtual clock, driven through the real writer, core and journal.

Commands are queued and take effect at the next `cycle()`; `advance()` runs the cycles that are due. By default agents
acknowledge launches and tasks run without end. All invariants are checked after every cycle.

    w = World()
    w.nodes(4, cpu=2)
    job = w.submit(stages=[{"name": "w", "count": 8, "resources": {"cpu": 1}}])
    w.cycle()
    assert len(w.placements(job)) == 8
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import count
from typing import Any, Literal

import msgspec

from fairlead import policies
from fairlead.core import commands
from fairlead.core.commands import Answer, Command, Rejected, ReportState, TaskAction
from fairlead.core.config import QUEUE_KEYS, parse_config
from fairlead.core.cycle import Cycle, due
from fairlead.core.documents import parse_changes, parse_job, parse_node
from fairlead.core.dump import dump
from fairlead.core.effects import Effect, ForManager, ForPool, outstanding_effects
from fairlead.core.entitlement import Entitlements
from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.core.model import Job, Micros, Queue, Stage
from fairlead.core.past_use import past_part
from fairlead.core.ranges import Ranges
from fairlead.core.resources import MEMORY, MILLI, SECOND, parse_duration
from fairlead.core.state import Partition
from fairlead.core.why.remedy_trial import copy_of
from fairlead.journal.in_memory import MemoryJournal
from fairlead.journal.journal import Journal
from fairlead.sim.fleet import Fleet
from fairlead.testing.manager_handle import ManagerHandle
from fairlead.views import summaries
from fairlead.views.dryrun import Tried, try_submission
from fairlead.views.explanation import Explained, explained, remedies_of, with_remedies
from fairlead.views.metrics.pool_metrics import pool_figures
from fairlead.views.summaries import AskView, JobView, TaskView, Waiting
from fairlead.writer.cluster import Cluster
from fairlead.writer.writer import Observer, Stopped, Writer

Breakage = Literal["failed", "unknown"]
MANAGING = commands.UpdateManager | commands.RegisterManager | commands.RemoveManager


class World:
    """A cluster for experiments. It starts at time 0, and places tasks at once."""

    most_cycles = 10_000
    """Largest number of cycles at one time. More are an error: phases keep undoing each other's work."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        unit: str | None = None,
        partitions: Sequence[str] = ("default",),
        journal: Journal | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Start the cluster with a configuration.

        `config` is a document as in fairlead.yaml, or the settings that every partition has.
        """
        policies.load()
        self.now: Micros = 0
        self.journal = journal if journal is not None else MemoryJournal()
        self._observers = observers
        self._config = _document(config or {}, unit, partitions)
        self._default: str = next(iter(self._config["partitions"]))
        self._queue: list[tuple[str, Command] | dict[str, Any]] = []
        self._answers: list[Answer] = []
        self._effects: list[Effect] = []
        self._ids: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        self._unordered = 0
        self._home: dict[str, str] = {}
        self._nodes: dict[tuple[str, str], dict[str, Any]] = {}
        self._silent: dict[str, Micros] = {}
        self._managers: dict[tuple[str, str], ManagerHandle] = {}
        self.fleets: dict[str, Fleet] = {}
        self._accepted: dict[str, Any] = {}
        self._open()
        self._apply(self._config)
        self.mark_ready()
        self.cycle()
        self._answers, self._effects = [], []

    # -- the cluster ---------------------------------------------------------------------------------------------

    def queue(self, path: str, partition: str | None = None, **settings: Any) -> None:
        """Add a queue, or replace the settings of an existing one. Missing parents are added too."""
        top = self._config["partitions"][partition or self._default]
        queue: dict[str, Any] = top.setdefault("queues", {})
        for name in path.split("."):
            queue = queue.setdefault(name, {})
        children = {name: child for name, child in queue.items() if name not in QUEUE_KEYS}
        queue.clear()
        queue.update(settings, **children)
        self._queue.append(deepcopy(self._config))

    def configure(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration. If it is refused, the cycle that applies it raises `Refused`."""
        names = list(self._config["partitions"])
        self._config = _document(config, None, names)
        self._queue.append(deepcopy(self._config))

    def set_share(self, queue: str, share: int, partition: str | None = None) -> None:
        settings = self._config["partitions"][partition or self._default].setdefault("queues", {})
        for name in queue.split("."):
            settings = settings[name]
        settings["share"] = share
        self._queue.append(deepcopy(self._config))

    def pool(self, name: str, partition: str | None = None, **settings: Any) -> None:
        """Add a pool, or replace its settings. `arrive` adds its nodes. They leave when the pool gives them back."""
        self._config["partitions"][partition or self._default].setdefault("pools", {})[name] = settings
        _bring_by_hand(settings)
        self._queue.append(deepcopy(self._config))

    def arrive(self, pool: str, n: int = 1, partition: str | None = None, **properties: Any) -> list[str]:
        """Add `n` nodes of a pool and return their names. Ordered nodes arrive first, then nodes without an order.

        They have the properties of the pool's nodes, unless other properties are given.
        """
        where = partition or self._default
        settings = self._config["partitions"][where]["pools"][pool]
        state = self.partition(where)
        ordered = [name for _, order in sorted(state.orders.items()) if order.pool == pool for name in order.coming]
        names = [name for name in ordered if (where, name) not in self._nodes][:n]
        while len(names) < n:
            self._unordered += 1
            names.append(f"{pool}-unasked-{self._unordered}")
        for name in names:
            defaults = {"labels": settings.get("labels"), "taints": settings.get("taints", ()), **settings["node"]}
            self.node(name, pool=pool, partition=where, **{**defaults, **properties})
        return names

    def fail_order(self, pool: str, reason: str = "no machines", partition: str | None = None) -> None:
        """Fail the oldest order of a pool: its nodes that have not joined will not join."""
        where = partition or self._default
        orders = [number for number, order in sorted(self.partition(where).orders.items()) if order.pool == pool]
        if not orders:
            raise KeyError(f"pool {pool} has no order that could fail")
        self._send(where, commands.FailOrder(pool=pool, order=orders[0], reason=reason, operator=True))

    def fail_machines(self, *names: str, reason: str = "the machine went away", partition: str | None = None) -> None:
        """Fail machines of one order, by the names of their nodes, before their agents join."""
        where = partition or self._default
        state = self.partition(where)
        number = state.order_of[names[0]]
        pool = state.orders[number].pool
        self._send(where, commands.FailOrder(pool=pool, order=number, reason=reason, names=names, operator=True))

    def pause_pool(self, pool: str, partition: str | None = None) -> None:
        self._send(partition or self._default, commands.MovePool(pool=pool, action="pause", operator=True))

    def resume_pool(self, pool: str, partition: str | None = None) -> None:
        self._send(partition or self._default, commands.MovePool(pool=pool, action="resume", operator=True))

    def scale_pool(self, pool: str, nodes: int, partition: str | None = None) -> None:
        self._send(partition or self._default, commands.ScalePool(pool=pool, nodes=nodes, operator=True))

    def node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[str] = (),
        users: Sequence[str] = (),
        pool: str | None = None,
        partition: str | None = None,
        **resources: Any,
    ) -> None:
        where = partition or self._default
        doc = {"name": name, "resources": resources, "labels": dict(labels or {}), "taints": list(taints)}
        doc["users"] = list(users)
        if pool is not None:
            doc["pool"] = pool
        _, spec = parse_node(doc)
        self._nodes[where, name] = doc
        self._home.setdefault(name, where)
        self._send(where, commands.AddNode(name=name, spec=spec, operator=True))

    def nodes(self, count: int, prefix: str = "n", **properties: Any) -> None:
        """Add `count` equal nodes, named by prefix and number."""
        for number in range(count):
            self.node(f"{prefix}{number}", **properties)

    def update_node(self, name: str, **changes: Any) -> None:
        """Change some of the resources, labels, taints, users and pool of a node."""
        where = self._home.get(name, self._default)
        doc = self._nodes[where, name]
        for key, value in changes.items():
            if key in ("labels", "taints", "users", "pool"):
                doc[key] = value
            else:
                doc["resources"][key] = value
        _, spec = parse_node(doc)
        self._send(where, commands.UpdateNode(name=name, spec=spec, operator=True))

    def drain(self, name: str, reason: str = "", lasts: float | str = 0, delay: float | str = 0) -> None:
        """Drain a node: for a time, or from a later time on."""
        self._move(name, "drain", reason, lasts, delay)

    def close(self, labels: Mapping[str, str], lasts: float | str = 0, reason: str = "") -> None:
        """Disable nodes with these labels for a time, also nodes that join meanwhile. Without a time, enable them."""
        pairs = tuple(sorted(labels.items()))
        span = parse_duration(lasts, "lasts")
        self._send(self._default, commands.CloseNodes(labels=pairs, lasts=span, reason=reason, operator=True))

    def disable(self, name: str, reason: str = "", lasts: float | str = 0) -> None:
        self._move(name, "disable", reason, lasts)

    def enable(self, name: str) -> None:
        self._move(name, "enable")

    def remove_node(self, name: str) -> None:
        self._send(self._home.get(name, self._default), commands.RemoveNode(name=name, operator=True))

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(
        self,
        *,
        stages: Iterable[Mapping[str, Any]],
        name: str = "job",
        user: str = "user",
        key: str | None = None,
        partition: str | None = None,
        operator: bool = True,
        **rest: Any,
    ) -> str:
        """Queue a submission and return the job's id. The `duration` of a stage is the run time of its tasks.

        The submission has the rights of an operator, which allow any priority and queue; `operator=False` gives it only
        the rights of `user`. A document that cannot be read raises `Refused` at once. Refusals that depend on the state
        are in `answers()` after the next cycle.
        """
        where = partition or self._default
        job_id = self._id(name, user, key)
        documents: list[dict[str, Any]] = []
        if isinstance(stages, Mapping):
            raise Refused("stages", "a mapping is one stage; write a list of stages")
        for stage in stages:
            document = dict(stage)
            duration = document.pop("duration", None)
            if duration is not None:
                stage_key = (job_id, document.get("name", "main"))
                self.fleets[where].durations[stage_key] = parse_duration(duration, "duration")
            documents.append(document)
        spec = parse_job({"name": name, "user": user, "stages": documents, **rest})
        self._home[job_id] = where
        command = commands.Submit(spec=spec, id=job_id, user=user, groups=spec.groups, key=key or "", operator=operator)
        self._send(where, command)
        return job_id

    def submit_pipeline(
        self, name: str, jobs: Iterable[Mapping[str, Any]], user: str = "user", operator: bool = True
    ) -> None:
        """Queue several jobs that are submitted at once, all or none. In `after`, a name of one of them means that job.

        The answer has the id of the pipeline and those of its jobs.
        """
        specs = tuple(parse_job({"user": user, **job}) for job in jobs)
        command = commands.SubmitPipeline(name=name, specs=specs, user=user, operator=operator)
        self._send(self._default, command)

    def update_job(self, job: str, user: str | None = None, **changes: Any) -> None:
        """Change a waiting job, as an operator or as a user. The changes are those of `fairlead update`."""
        self._on_job(commands.UpdateJob, job, user, **parse_changes(changes))

    def scale(self, job: str, stage: str, count: int) -> None:
        self._on_job(commands.Scale, job, stage=stage, count=count)

    def kill(self, job: str, user: str | None = None) -> None:
        self._on_job(commands.Kill, job, user)

    def hold(self, job: str, user: str | None = None) -> None:
        """Hold a job back, as an operator or as a user."""
        self._on_job(commands.HoldJob, job, user)

    def release(self, job: str, user: str | None = None) -> None:
        """Release a held job, as an operator or as a user."""
        self._on_job(commands.ReleaseJob, job, user)

    def requeue(self, job: str, user: str | None = None) -> None:
        """Stop the running tasks of a job, which then wait again."""
        self._on_job(commands.Requeue, job, user)

    def stop_tasks(self, job: str, action: TaskAction, stage: str, *indices: int, user: str | None = None) -> None:
        """Kill, requeue or replace tasks of a job, as an operator or as a user."""
        self._on_job(
            commands.StopTasks, job, user, stage=stage, indices=Ranges.from_indices(indices).flat(), action=action
        )

    def set_priority(self, job: str, priority: int, user: str | None = None) -> None:
        """Change the priority of a job, as an operator or as a user."""
        self._on_job(commands.SetPriority, job, user, priority=priority)

    def prioritise(self, job: str, stage: str) -> None:
        """Move the asks of a stage to the front of their lanes."""
        self._on_job(commands.BringToFront, job, stage=stage)

    def release_hold(self, job: str, stage: str = "") -> None:
        """Release the nodes held for a job, or for one of its stages."""
        self._on_job(commands.ReleaseHold, job, stage=stage)

    def cancel(self, job: str, stage: str) -> None:
        self._on_job(commands.CancelAsk, job, stage=stage)

    def reset_lane(self, queue: str, job: str, cancel: bool = False) -> None:
        self._on_job(commands.ResetLane, job, queue=queue, cancel=cancel)

    def stop_queue(self, path: str, partition: str | None = None) -> None:
        self._send(partition or self._default, commands.MoveQueue(queue=path, action="stop", operator=True))

    def start_queue(self, path: str, partition: str | None = None) -> None:
        self._send(partition or self._default, commands.MoveQueue(queue=path, action="start", operator=True))

    def finish(self, job: str, stage: str | None = None, index: int | None = None, exit_code: int = 0) -> None:
        """Report the end of live tasks: of one task, of all tasks of a stage, or of all tasks of the job."""
        state: ReportState = "succeeded" if exit_code == 0 else "failed"
        for candidate in self._job(job).stages:
            if stage in (None, candidate.name):
                for task in sorted(candidate.live or ()) if index is None else [index]:
                    self._report(job, candidate, task, None, state, exit_code)

    def report(
        self,
        job: str,
        stage: str,
        index: int,
        attempt: int,
        state: ReportState,
        node: str | None = None,
        exit_code: int | None = None,
        ran: float = 0,
    ) -> None:
        """Send any report about a task, even an outdated or false one. `ran` is the run time so far, in seconds."""
        self._report(job, self._stage(job, stage), index, attempt, state, exit_code, node, ran)

    # -- agents --------------------------------------------------------------------------------------------------

    def hold_acks(self, node: str) -> None:
        self._fleet_of(node).hold_acks(node)

    def release_acks(self, node: str) -> None:
        self._fleet_of(node).release_acks(node, self.now)

    def refuse_launches(self, node: str) -> None:
        self._fleet_of(node).refuse_launches(node)

    def ignore_stops(self, job: str) -> None:
        """Make tasks of the job ignore stops, like processes that cannot be killed."""
        for fleet in self.fleets.values():
            fleet.ignore_stops(job)

    def silence(self, node: str) -> None:
        """Stop all messages of a node. It is declared lost after the lease and one more heartbeat."""
        self._fleet_of(node).silence(node)
        self._silent.setdefault(node, self.now)

    def disconnect(self, node: str) -> None:
        """Disconnect the agent of a node. Its tasks keep running. It gets no new ones and is lost after the lease."""
        self._fleet_of(node).disconnect(node)
        self._silent.setdefault(node, self.now)
        self._send(self._home[node], commands.DisconnectNodes(names=(node,), operator=True))

    def connect(self, node: str) -> None:
        """Connect the agent of a node again. It still has its tasks, and sends the reports that it could not send."""
        self._silent.pop(node, None)
        self._fleet_of(node).connect(node)
        self._join(node)

    def fail_node(self, node: str) -> None:
        self._fleet_of(node).fail(node, self.now)
        self._silent.pop(node, None)

    def return_node(self, node: str) -> None:
        where = self._home[node]
        self._silent.pop(node, None)
        self.fleets[where].return_node(node, self.now)
        self._join(node)

    def rm(self, name: str, partition: str | None = None) -> ManagerHandle:
        """Return the resource manager of that name."""
        where = partition or self._default
        if (where, name) not in self._managers:
            self._managers[where, name] = ManagerHandle(name, lambda command: self._send(where, command))
        return self._managers[where, name]

    # -- time ----------------------------------------------------------------------------------------------------

    def cycle(self) -> None:
        """Run one cycle at the present time. Each queued configuration is applied in a cycle of its own."""
        batch: list[tuple[str, Command]] = []
        waiting, self._queue = self._queue, []
        for at, entry in enumerate(waiting):
            if isinstance(entry, tuple):
                batch.append(entry)
                continue
            if at + 1 < len(waiting) and isinstance(waiting[at + 1], dict):
                continue  # the next document replaces this one
            if batch:
                self._turn(batch)
                batch = []
            try:
                self._apply(entry)
            except Refused:
                self._queue = waiting[at + 1 :]
                raise
        self._turn(batch)

    def advance(self, seconds: float) -> None:
        """Move the clock and run the cycles that fall due on the way."""
        if not seconds >= 0:
            raise ValueError(f"the clock cannot move by {seconds} s; give a number of seconds from 0 on")
        target = self.now + round(seconds * SECOND)
        cycles = 0
        while True:
            when = self._next_due()
            if when is None or when > target:
                break
            cycles = cycles + 1 if when <= self.now else 0
            if cycles > self.most_cycles:
                raise RuntimeError(f"cycles do not end at {self.now / SECOND} s; look at the changes of the last ones")
            self.now = max(self.now, when)
            self.cycle()
        self.now = target

    def mark_ready(self) -> None:
        for name in self.cluster.writers:
            self._send(name, commands.MarkReady(operator=True))

    def restart(self, ready: bool = True, away: float = 0) -> None:
        """Replace the control plane by one that recovers from the journal, `away` seconds later. Agents keep running.

        With `ready`, the new one places tasks at once. Otherwise it starts as a server does: it places no tasks until
        `mark_ready`, until `ready_after` is over, or until all nodes and resource managers have reported. A call of
        `node` and a report about a task are reports of a node, an update is a report of a manager.
        """
        self.now += round(away * SECOND)
        self._recover({name: ready for name in self.cluster.writers})

    def break_journal(self, how: Breakage, written: bool = False) -> None:
        """Make the next write to the journal fail, certainly (`failed`) or with an unknown outcome (`unknown`).

        `written` says whether the record is in the journal all the same. The cycle recovers from the journal.
        """
        if not isinstance(self.journal, MemoryJournal):
            raise TypeError("only a memory journal can be broken on demand")
        self.journal.break_next(how, written)

    # -- reading the state ---------------------------------------------------------------------------------------

    def partition(self, name: str | None = None) -> Partition:
        """Return the state of a partition, to read and not to change."""
        return self.cluster.writers[name or self._default].partition

    def placements(self, job: str) -> dict[tuple[str, int], str]:
        return summaries.placements_view(self.partition(self._where(job)), self._job(job))

    def job(self, job: str) -> JobView:
        view = summaries.job_view(self._job(job))
        return msgspec.structs.replace(
            view,
            submitted=_seconds(view.submitted),
            waiting_since=_seconds(view.waiting_since),
            ended_at=_seconds(view.ended_at),
        )

    def task(self, job: str, stage: str, index: int) -> TaskView:
        record = self._stage(job, stage)
        if not 0 <= index < record.count and index not in (record.live or {}):
            raise KeyError(f"stage {stage} of job {job} has no task {index}; it has {record.count}")
        return summaries.task_view(self.partition(self._where(job)), record, index)

    def lanes(self, partition: str | None = None) -> dict[tuple[str, str], list[AskView]]:
        return {
            key: [
                msgspec.structs.replace(ask, asked=_seconds(ask.asked), waiting_since=_seconds(ask.waiting_since))
                for ask in lane
            ]
            for key, lane in summaries.lanes_view(self.partition(partition)).items()
        }

    def holds(self, partition: str | None = None) -> dict[str, list[tuple[str, str, int]]]:
        """Return held node → the asks that it is held for: job, stage and number of tasks."""
        return summaries.holds_view(self.partition(partition))

    def promises(self, partition: str | None = None) -> dict[tuple[str, str, str], list[tuple[str, int]]]:
        """Return ask (job, stage and kind) → nodes with capacity promised to it, each with a number of tasks."""
        return summaries.promises_view(self.partition(partition))

    def pools(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """Return pool → its sizes: ready, total, available, pending, idle, ordered, disabled.

        Before the partition is ready, there is only `ready`.
        """
        state = self.partition(partition)
        figures = pool_figures(state)
        if figures is None:
            return {name: {"ready": False} for name in sorted(state.pools)}
        return {name: msgspec.structs.asdict(use) for name, use in figures.items()}

    def usage(self, queue: str, partition: str | None = None) -> dict[str, float]:
        """Return the use of a queue, in the units that users write: CPUs, bytes, GPUs."""
        if queue not in self.partition(partition).queues:
            raise KeyError(f"there is no queue {queue}")
        used = summaries.usage_view(self.partition(partition), queue)
        return {name: _units(name, amount) for name, amount in used.items()}

    def entitlement(self, queue: str, partition: str | None = None) -> float:
        """Return the entitlement of a queue, in slots if the unit is slots, else as a fraction of the partition."""
        entitlements, entry = self._entitlements(queue, partition)
        return entitlements.of(entry) if entitlements.slots else entitlements.of(entry) / entitlements.whole

    def loaned(self, queue: str, partition: str | None = None) -> float:
        """Return the use of a queue beyond its entitlement, in the unit of `entitlement`."""
        entitlements, entry = self._entitlements(queue, partition)
        return entitlements.loaned(entry) if entitlements.slots else entitlements.loaned(entry) / entitlements.whole

    def past(self, queue: str, user: str = "", partition: str | None = None) -> float:
        """Return the average past use of a queue, or of a user in it, as a fraction of the partition."""
        state = self.partition(partition)
        if queue not in state.queues or (user and user not in state.queues[queue].users):
            raise KeyError(f"there is no queue {queue}" if queue not in state.queues else f"{queue} has no user {user}")
        account = state.queues[queue].users[user] if user else state.queues[queue].account
        return past_part(state, account, self.now)

    def explain(self, job: str) -> list[Waiting]:
        where = self._where(job)
        return summaries.explain_view(
            self.partition(where), self._job(job), self.cluster.writers[where].reasons, self.now
        )

    def why(self, job: str, remedies: bool = True) -> Explained:
        """Return a sentence about a job, reasons why its tasks wait, and remedies that would start them."""
        where = self._where(job)
        view = explained(self.partition(where), self._job(job), self.cluster.writers[where].reasons, self.now)
        if not remedies or not view.waiting:
            return view
        twin = copy_of(self.partition(where))
        return with_remedies(view, remedies_of(twin, twin.jobs[job], self.now), lambda name: True)

    def dry_run(
        self, *, stages: Iterable[Mapping[str, Any]], user: str = "user", partition: str | None = None, **rest: Any
    ) -> Tried:
        """Return what the next cycle would do with a job, without submitting it. Raise `Refused` if it is refused."""
        where = partition or self._default
        spec = parse_job({"user": user, "stages": [dict(stage) for stage in stages], **rest})
        command = commands.Submit(spec=spec, user=user, groups=spec.groups, operator=True)
        reasons = self.cluster.writers[where].reasons
        tried = try_submission(copy_of(self.partition(where)), command, reasons, self.now)
        if isinstance(tried, Rejected):
            raise Refused(tried.field, tried.problem, tried.code)
        return tried

    def answers(self) -> list[Answer]:
        """Return the answers since the last call, in the order of the commands."""
        answers, self._answers = self._answers, []
        return answers

    def effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def dump(self, partition: str | None = None) -> bytes:
        return dump(self.partition(partition))

    def check(self) -> None:
        """Check all invariants. Every cycle does this too."""
        for writer in self.cluster.writers.values():
            check_all(writer.partition, settled=not writer.more)

    # -- inside --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.cluster = Cluster(self.journal, self._observers)
        self.now = max(self.now, *(writer.partition.now for writer in self.cluster.writers.values()), 0)
        for name, done in self.cluster.begin(self.now).items():
            self._deliver(name, done)
        self.cluster.drop_removed()
        for name, writer in self.cluster.writers.items():
            self.fleets.setdefault(name, Fleet()).deliver(outstanding_effects(writer.partition), self.now)

    def _readiness(self) -> dict[str, bool]:
        return {name: writer.partition.readiness.ready for name, writer in self.cluster.writers.items()}

    def _recover(self, ready: Mapping[str, bool]) -> None:
        before = self.cluster.writers
        self._open()
        for name, writer in self.cluster.writers.items():
            if not ready.get(name, False):
                continue
            old = before[name]
            if old.partition.readiness.ready:
                writer.partition.readiness = old.partition.readiness
            else:
                writer.partition.readiness.ready, writer.partition.readiness.ready_at = True, self.now
            writer.partition.retime()
            writer.take_over(old)

    def _losses(self, name: str) -> list[Command]:
        """Return commands that declare nodes lost, as the server does after a long silence."""
        late = [node for node, since in self._silent.items() if self._home[node] == name and self._is_late(node, since)]
        for node in late:
            del self._silent[node]
        return [commands.MoveNode(name=node, action="lose", operator=True) for node in late]

    def _is_late(self, node: str, since: Micros) -> bool:
        when = self._lost_at(node, since)
        return when is not None and when <= self.now

    def _lost_at(self, node: str, since: Micros) -> Micros | None:
        """Return when a silent node is lost. The time counts from readiness at the earliest; None before readiness."""
        writer = self.cluster.writers.get(self._home[node])
        if writer is None or not writer.partition.readiness.ready:
            return None
        settings = writer.partition.settings
        return max(since, writer.partition.readiness.ready_at) + settings.lease + settings.heartbeat

    def _apply(self, config: Mapping[str, Any]) -> None:
        for name in config["partitions"]:
            self.fleets.setdefault(name, Fleet())
        try:
            cycles = self.cluster.configure(parse_config(config), self.now)
        except Refused:
            self._config = self._accepted
            raise
        except Stopped:
            self._recover(self._readiness())
            cycles = self.cluster.configure(parse_config(config), self.now)
        self._accepted = deepcopy(dict(config))
        for name, done in cycles.items():
            self._deliver(name, done)
        self.cluster.drop_removed()
        self.check()

    def _turn(self, batch: list[tuple[str, Command]]) -> None:
        by_partition: dict[str, list[Command]] = {name: [] for name in self.cluster.writers}
        for where, command in batch:
            if where in by_partition:
                by_partition[where].append(command)
            else:
                names = ", ".join(by_partition)
                self._answers.append(
                    Rejected("partition", f"there is no partition {where}; name one of {names}", "unknown")
                )
        for name, asked in by_partition.items():
            reports = [*self.fleets[name].reports(self.now), *self._losses(name)]
            writer: Writer = self.cluster.writers[name]
            try:
                done = writer.cycle([*reports, *asked], self.now)
            except Stopped as stopped:
                self._answers += [Rejected("", str(stopped), "unavailable") for _ in asked]
                self.fleets[name].send_again(reports)
                self._recover(self._readiness())
                continue
            answers = done.answers[len(reports) :]
            self._answers += answers
            for command, answer in zip(asked, answers, strict=True):
                if isinstance(command, MANAGING):
                    self.rm(command.name, name).answered(answer)
            self._deliver(name, done)
            for command in asked:
                if isinstance(command, commands.AddNode):
                    self._brief_agent(name, command.name)
        self.check()

    def _deliver(self, name: str, done: Cycle) -> None:
        self._effects += done.effects
        self.fleets.setdefault(name, Fleet()).deliver(done.effects, self.now)
        for effect in done.effects:
            if isinstance(effect, ForManager):
                self.rm(effect.manager, name).receive(effect.events)
            elif isinstance(effect, ForPool):
                for node in effect.unwanted:
                    self.remove_node(node)

    def _brief_agent(self, where: str, node: str) -> None:
        """Send all outstanding launches and stops to an agent that joins, because earlier messages may be lost."""
        partition = self.partition(where)
        node_id = partition.nodes.find(node)
        if node_id is not None:
            self.fleets[where].deliver(outstanding_effects(partition, node_id), self.now)

    def _next_due(self) -> Micros | None:
        if self._queue or any(writer.more for writer in self.cluster.writers.values()):
            return self.now
        times = [fleet.next_due() for name, fleet in self.fleets.items() if name in self.cluster.writers]
        times += [due(writer.partition) for writer in self.cluster.writers.values()]
        times += [self._lost_at(node, since) for node, since in self._silent.items()]
        return min((when for when in times if when is not None), default=None)

    def _send(self, where: str, command: Command) -> None:
        self._queue.append((where, command))

    def _on_job(self, kind: type[Any], job: str, user: str | None = None, **fields: Any) -> None:
        """Queue a command about a job, with the rights of a user, or by default of an operator."""
        self._send(self._where(job), kind(job=job, user=user or "", operator=user is None, **fields))

    def _move(
        self,
        name: str,
        action: Literal["drain", "disable", "enable"],
        reason: str = "",
        lasts: float | str = 0,
        delay: float | str = 0,
    ) -> None:
        span, later = parse_duration(lasts, "lasts"), parse_duration(delay, "delay")
        command = commands.MoveNode(name=name, action=action, reason=reason, lasts=span, delay=later, operator=True)
        self._send(self._home.get(name, self._default), command)

    def _join(self, node: str) -> None:
        where = self._home[node]
        _, spec = parse_node(self._nodes[where, node])
        self._send(where, commands.AddNode(name=node, spec=spec, operator=True))

    def _id(self, name: str, user: str, key: str | None) -> str:
        if key is not None and (user, key) in self._ids:
            return str(self._ids[user, key])
        numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
        job_id = next(each for each in numbered if each not in self._taken and not each.isdigit())
        self._taken.add(job_id)
        if key is not None:
            self._ids[user, key] = job_id
        return job_id

    def _where(self, job: str) -> str:
        return self._home.get(job, self._default)

    def _fleet_of(self, node: str) -> Fleet:
        if node not in self._home:
            raise KeyError(f"there is no node {node}; add it with node()")
        return self.fleets[self._home[node]]

    def _entitlements(self, queue: str, partition: str | None) -> tuple[Entitlements, Queue]:
        state = self.partition(partition)
        if queue not in state.queues:
            raise KeyError(f"there is no queue {queue}")
        return state.entitlements(), state.queues[queue]

    def _job(self, job: str) -> Job:
        record = self.partition(self._where(job)).jobs.get(job)
        if record is None:
            raise KeyError(f"there is no job {job}; was it refused? see answers()")
        return record

    def _stage(self, job: str, stage: str) -> Stage:
        record = self._job(job).stage(stage)
        if record is None:
            raise KeyError(f"job {job} has no stage {stage}")
        return record

    def _report(
        self,
        job: str,
        stage: Stage,
        index: int,
        attempt: int | None,
        state: ReportState,
        exit_code: int | None,
        node: str | None = None,
        ran: float = 0,
    ) -> None:
        where = self._where(job)
        allocation = (stage.live or {}).get(index)
        nodes = self.partition(where).nodes
        if node is None:
            node = "" if allocation is None else nodes.name[nodes.rows[allocation.node]]
        live = stage.top if allocation is None else allocation.attempt
        attempt = live if attempt is None else attempt
        if state not in ("running", "refused") and attempt == live:
            self.fleets[where].ended(job, stage.name, index, self.now)
        self._on_job(
            commands.Report,
            job,
            node=node,
            stage=stage.name,
            indices=(index, index + 1),
            attempt=attempt,
            state=state,
            exit_code=exit_code,
            ran=round(ran * SECOND),
        )


def _document(config: Mapping[str, Any], unit: str | None, partitions: Sequence[str]) -> dict[str, Any]:
    document: dict[str, Any] = deepcopy(dict(config))
    if "partitions" not in document:
        document = {"partitions": {name: deepcopy(document) for name in partitions}}
    # Chains are off unless configured: with chains, start times depend on measured run times.
    document["partitions"] = {name: {"chain": 0, **(doc or {})} for name, doc in document["partitions"].items()}
    for doc in document["partitions"].values():
        for pool in (doc.get("pools") or {}).values():
            _bring_by_hand(pool)
    if unit is not None:
        for doc in document["partitions"].values():
            doc["unit"] = unit
    return document


def _bring_by_hand(pool: Any) -> None:
    """Give a pool a provider that adds no nodes, so that it can order nodes; `arrive` adds them."""
    if isinstance(pool, dict):
        pool.setdefault("provider", {"memory": {}})


def _seconds(micros: Any) -> Any:
    return None if micros is None else micros / SECOND


def _units(name: str, amount: int) -> float:
    whole = amount if name == MEMORY else amount / MILLI
    return int(whole) if whole == int(whole) else whole
