"""The methods of `Client` that are one operation each. `make generate` writes this file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from fairlead.client.calls import Document, Moment, Page, given, listed, seconds_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import Answer, Operation


class Methods(ABC):
    """The operations of the API as methods."""

    @abstractmethod
    def send(self, operation: Operation[Answer]) -> Answer:
        """Send an operation and return its answer."""

    @abstractmethod
    def pages(self, operation: Operation[Page]) -> Iterator[Page]:
        """Yield the pages of a list."""

    def rerun(
        self,
        job: str,
        failed: bool | None = None,
        environment: dict[str, str] | None = None,
        name: str = "",
        queue: str = "",
    ) -> wire.Submitted:
        """Submit a job that is over again, or only its tasks that have not succeeded. The new job has no
        dependencies."""
        return self.send(
            op.Rerun(
                job=job, document=given(failed=failed, environment=environment, name=name or None, queue=queue or None)
            )
        )

    def submit_pipeline(self, jobs: list[dict[str, Any]], name: str = "") -> wire.Pipeline:
        """Submit several jobs that depend on each other, all or none. They get the label `pipeline` with a value of
        their own, by which they can be listed, held or killed together."""
        return self.send(op.SubmitPipeline(document=given(jobs=jobs, name=name or None)))

    def jobs(
        self,
        state: str | Sequence[str] = (),
        user: str = "",
        queue: str = "",
        name: str = "",
        label: str = "",
        search: str = "",
        id: str | Sequence[str] = (),
        tasks: bool = False,
        limit: int = 100,
    ) -> Iterator[wire.Job]:
        """List the jobs that the caller may see and that match all filters, newest first."""
        for page in self.pages(
            op.Jobs(
                state=listed(state),
                user=user,
                queue=queue,
                name=name,
                label=label,
                search=search,
                id=listed(id),
                tasks=tasks,
                limit=limit,
            )
        ):
            yield from page.jobs

    def job(self, job: str, wait: float = 0.0, tasks: bool = False) -> wire.Job:
        """Return a job. With `wait`, answer when the job has ended, but after `wait` seconds at the latest. A killed
        job has ended when its last process has. A job that the scheduler has forgotten is read from the history."""
        return self.send(op.Job(job=job, wait=wait, tasks=tasks))

    def table(
        self, job: str, stage: str = "", stream: Literal["out", "err"] | None = None, limit: int = 100
    ) -> wire.Table:
        """List the tasks of a job with their parameters, states and times, and the last line of their output."""
        return self.send(op.Table(job=job, stage=stage, stream=stream, limit=limit))

    def explain(self, job: str, remedies: bool = True) -> wire.Explanation:
        """Explain the state of a job: one sentence, then why its tasks wait, stop, or run on their nodes. A reason
        for waiting has remedies, each of which would start the tasks in the next cycle. They are found by trials on
        a copy of the state, which takes longer than the rest."""
        return self.send(op.Explain(job=job, remedies=remedies))

    def sentences(self, jobs: list[str]) -> dict[str, str]:
        """Return the sentence of the explanation of up to 200 jobs. Jobs that the caller may not see are left out."""
        return self.send(op.Sentences(document=given(jobs=jobs))).sentences

    def kill(self, job: str) -> str:
        """Kill a job: cancel its waiting tasks and stop its running tasks. A finished job stays as it is."""
        return self.send(op.Kill(job=job)).note

    def hold(self, job: str) -> str:
        """Hold a job: its running tasks continue, and its other tasks start only after it is released. The job keeps
        its place. A hold by an operator can be released only by an operator."""
        return self.send(op.Hold(job=job)).note

    def release(self, job: str) -> str:
        """Release a held job. Its tasks keep their place and start when their turn comes."""
        return self.send(op.Release(job=job)).note

    def requeue(self, job: str) -> str:
        """Stop the running tasks of a job, with a grace period. They wait again at their earlier place, and start as
        a new attempt without using a try. A job that has ended cannot be requeued."""
        return self.send(op.Requeue(job=job)).note

    def stop_tasks(
        self, job: str, action: Literal["kill", "requeue", "replace"], indices: list[int], stage: str = ""
    ) -> str:
        """Stop some tasks of a job, with a grace period and without using a try. Killed tasks do not start again;
        requeued ones wait again at their earlier place; replaced ones are asked for at once, before new work. A
        strict gang starts again as a whole, and single tasks of it cannot be killed."""
        return self.send(
            op.StopTasks(job=job, action=action, document=given(indices=indices, stage=stage or None))
        ).note

    def scale(self, job: str, count: int, stage: str = "") -> str:
        """Change the number of tasks of a stage. The stage may be left out if the job has only one."""
        return self.send(op.Scale(job=job, document=given(count=count, stage=stage or None))).note

    def update_job(
        self,
        job: str,
        queue: str = "",
        priority: int | None = None,
        after: list[str] | None = None,
        labels: dict[str, str | None] | None = None,
        stage: str = "",
        resources: dict[str, int | float | str] | None = None,
        time_limit: int | float | str | None = None,
        estimate: int | float | str | None = None,
        throttle: int | Literal["none"] | None = None,
    ) -> str:
        """Change a job that waits: its queue, priority, dependencies, labels, resources, limits or throttle. The
        caller needs the rights that submitting the changed job would need."""
        return self.send(
            op.UpdateJob(
                job=job,
                document=given(
                    queue=queue or None,
                    priority=priority,
                    after=after,
                    labels=labels,
                    stage=stage or None,
                    resources=resources,
                    time_limit=time_limit,
                    estimate=estimate,
                    throttle=throttle,
                ),
            )
        ).note

    def set_priority(self, job: str, priority: int) -> str:
        """Change the priority of a job. Owners may lower it, or raise it up to their `max_priority` in its queue;
        operators may raise it further."""
        return self.send(op.SetPriority(job=job, document=given(priority=priority))).note

    def try_priority(self, job: str, priority: int) -> wire.PriorityStops:
        """Return the running tasks of other jobs that would be stopped at once if a job had another priority.
        Nothing is changed. While the job waits, more may be stopped later."""
        return self.send(op.TryPriority(job=job, document=given(priority=priority)))

    def promised_starts(self, since: Moment | None = None) -> wire.PromisedStarts:
        """Return how many of the starts that were foretold came within their interval, for jobs that were decided
        since a time, by default in the last 7 days."""
        return self.send(op.PromisedStarts(since=seconds_of(since)))

    def story(self, job: str) -> wire.Story:
        """Return what happened to a job, in order and with reasons: its submission, holds, starts, stops with the
        job that caused them, and ends; and why tasks wait now. Before the journal begins, only the submission and
        the attempts are known."""
        return self.send(op.Story(job=job))

    def bill(self, job: str) -> wire.Bill:
        """Return how long a job has waited for what: loans of other queues, other jobs of its queue, its limits,
        broken nodes and so on. The parts add up to the wait. They come from the journal, as far as it reaches back."""
        return self.send(op.Bill(job=job))

    def trace(self, since: Moment | None = None) -> wire.RecordedTrace:
        """Return a trace for `fairlead simulate`: the present nodes, and those jobs submitted since a time that ran
        and have ended. Their commands, environments and files are left out. Only for operators."""
        return self.send(op.Trace(since=seconds_of(since)))

    def history(
        self,
        user: str = "",
        queue: str = "",
        state: str = "",
        name: str = "",
        label: str = "",
        node: str = "",
        since: Moment | None = None,
        until: Moment | None = None,
        id: str | Sequence[str] = (),
        attempts: bool = False,
        limit: int = 100,
    ) -> Iterator[wire.PastJob]:
        """List finished jobs that match all filters, newest first, including those already forgotten by the
        scheduler. `since` and `until` select by the time of the end. Users see their own jobs."""
        for page in self.pages(
            op.History(
                user=user,
                queue=queue,
                state=state,
                name=name,
                label=label,
                node=node,
                since=seconds_of(since),
                until=seconds_of(until),
                id=listed(id),
                attempts=attempts,
                limit=limit,
            )
        ):
            yield from page.jobs

    def job_usage(self, job: str, limit: int = 100) -> wire.JobUsage:
        """List the CPU time and the memory that the ended attempts of a job used, by task, beside what was asked
        for."""
        return self.send(op.JobUsage(job=job, limit=limit))

    def waits(
        self, by: str = "queue", since: Moment | None = None, until: Moment | None = None, user: str = ""
    ) -> wire.Waits:
        """Return how long jobs waited for what in a period, by group, as far as the journal reaches back. Users see
        only their own waits."""
        return self.send(op.Waits(by=by, since=seconds_of(since), until=seconds_of(until), user=user))

    def timeline(self, since: Moment | None = None, until: Moment | None = None) -> wire.Timeline:
        """Return the tasks that ran in a period, by default the last hour, with their nodes: all running tasks, and
        the newest 20,000 ended ones. Users see their own tasks."""
        return self.send(op.Timeline(since=seconds_of(since), until=seconds_of(until)))

    def nodes(
        self,
        state: Literal["up", "disconnected", "draining", "disabled", "lost"] | None = None,
        pool: str | None = None,
        limit: int = 1000,
    ) -> Iterator[wire.Node]:
        """List nodes with their resources, use and state, in the order in which they joined."""
        for page in self.pages(op.Nodes(state=state, pool=pool, limit=limit)):
            yield from page.nodes

    def node(self, node: str) -> wire.Node:
        """Return a node with its resources, use and state."""
        return self.send(op.Node(node=node))

    def move_node(
        self,
        node: str,
        action: Literal["drain", "disable", "enable"],
        reason: str = "",
        lasts: float = 0.0,
        delay: float = 0.0,
    ) -> str:
        """Drain (running tasks finish), disable, or enable a node. Only for operators."""
        return self.send(op.MoveNode(node=node, action=action, reason=reason, lasts=lasts, delay=delay)).note

    def closures(self) -> list[wire.Closure]:
        """List closures: labels whose nodes are disabled for a time."""
        return self.send(op.Closures()).closures

    def close_nodes(self, labels: dict[str, str], lasts: int | float | str, reason: str = "") -> str:
        """Disable the nodes with all of these labels for a time, also those that join during it. Running tasks
        finish. Only for operators."""
        return self.send(op.CloseNodes(document=given(labels=labels, lasts=lasts, reason=reason or None))).note

    def open_nodes(self, labels: dict[str, str]) -> str:
        """Enable the nodes with these labels that were disabled for a time. Only for operators."""
        return self.send(op.OpenNodes(document=given(labels=labels))).note

    def remove_node(self, node: str) -> str:
        """Remove a node. Tasks running there are lost at once. Only for operators."""
        return self.send(op.RemoveNode(node=node)).note

    def revoke_node(self, node: str) -> str:
        """Revoke the key of a node: its connection ends, and its tasks are lost when its lease expires. A new join
        token for the node admits it again. Only for operators."""
        return self.send(op.RevokeNode(node=node)).note

    def queues(self) -> list[wire.Queue]:
        """List queues with their settings, use and waiting asks, by path."""
        return self.send(op.Queues()).queues

    def queue(self, queue: str) -> wire.Queue:
        """Return a queue with its settings, use and waiting asks."""
        return self.send(op.Queue(queue=queue))

    def move_queue(self, queue: str, action: Literal["start", "stop"]) -> str:
        """Stop a queue, so that it accepts and starts no jobs, or start it again. Only for operators."""
        return self.send(op.MoveQueue(queue=queue, action=action)).note

    def loans(self) -> list[wire.Loan]:
        """List the leaf queues that use more than their entitlement, and when these loans return by the estimates
        and time limits of their tasks."""
        return self.send(op.Loans()).loans

    def bring_to_front(self, job: str, stage: str) -> str:
        """Move the asks of a stage to the front of their lanes. Only for operators."""
        return self.send(op.BringToFront(document=given(job=job, stage=stage))).note

    def cancel_ask(self, job: str, stage: str) -> str:
        """Cancel the waiting tasks of a stage."""
        return self.send(op.CancelAsk(document=given(job=job, stage=stage))).note

    def reset_lane(self, queue: str, job: str, cancel: bool | None = None) -> str:
        """Free a stuck lane: if its first ask belongs to the given job, move the ask to the end of the lane, or
        cancel it. Only for operators."""
        return self.send(op.ResetLane(document=given(queue=queue, job=job, cancel=cancel))).note

    def release_hold(self, job: str, stage: str = "") -> str:
        """Release the nodes held for a job, or for one of its stages, so that other work can use them. Only for
        operators."""
        return self.send(op.ReleaseHold(document=given(job=job, stage=stage or None))).note

    def usage(self) -> wire.Usage:
        """Return the numbers of nodes of each pool by use: available, needed by waiting work, idle and ordered.
        Empty until the partition is ready."""
        return self.send(op.Usage())

    def pool(self, pool: str) -> wire.Pool:
        """Return a pool with its size, its orders, the jobs that the orders are for, and orphaned machines."""
        return self.send(op.Pool(pool=pool))

    def scale_pool(self, pool: str, nodes: int) -> str:
        """Order nodes, or give back idle ones, until the pool has this size. Later demand may change the size again.
        Only for operators."""
        return self.send(op.ScalePool(pool=pool, document=given(nodes=nodes))).note

    def mark_ready(self, partition: str) -> str:
        """Mark a partition ready: place tasks now, without waiting for nodes and managers to report after a start.
        Only for operators."""
        return self.send(op.MarkReady(partition=partition)).note

    def servers(self) -> list[wire.Server]:
        """List the servers that are up and share the database, with the partitions that each leads. Only for
        operators."""
        return self.send(op.Servers()).servers

    def drain_server(self, server: str) -> str:
        """Drain a server: it gives up its partitions and can then be stopped. It keeps answering reads. Only for
        operators."""
        return self.send(op.DrainServer(server=server)).note

    def enable_server(self, server: str) -> str:
        """Allow a drained server to lead partitions again. Only for operators."""
        return self.send(op.EnableServer(server=server)).note

    def config(self, defaults: bool = False) -> wire.Config:
        """Return the configuration as it would be written in fairlead.yaml. Only for operators."""
        return self.send(op.Config(defaults=defaults))

    def validate_config(self, document: Document) -> wire.Applied:
        """Check a configuration, and return what it would change. Nothing is changed. Only for operators."""
        return self.send(op.ValidateConfig(document=cast(Any, document)))

    def apply_config(self, document: Document) -> wire.Applied:
        """Apply a configuration as a whole. If any part is refused, nothing changes. The answer lists what changed.
        Only for administrators."""
        return self.send(op.ApplyConfig(document=cast(Any, document)))

    def set_partition(self, partition: str, document: Document) -> wire.Applied:
        """Add a partition, or replace its configuration. Only for administrators."""
        return self.send(op.SetPartition(partition=partition, document=cast(Any, document)))

    def remove_partition(self, partition: str) -> wire.Applied:
        """Remove a partition, and release its jobs, allocations and nodes at once. Only for administrators."""
        return self.send(op.RemovePartition(partition=partition))

    def shares(self) -> wire.Shares:
        """Return the shares of queues, the patterns that choose a queue by user, and the settings of rebalancing.
        Only for operators."""
        return self.send(op.Shares())

    def set_shares(
        self,
        shares: dict[str, int | None] | None = None,
        requestors: list[wire.RequestorDocument] | None = None,
        rebalance_threshold: int | None = None,
        rebalance_after: int | float | str | None = None,
    ) -> wire.Applied:
        """Change the given keys of the configuration. The change lasts until the next configuration is applied, also
        over restarts. Only for operators."""
        return self.send(
            op.SetShares(
                document=given(
                    shares=shares,
                    requestors=requestors,
                    rebalance_threshold=rebalance_threshold,
                    rebalance_after=rebalance_after,
                )
            )
        )

    def managers(self) -> list[wire.Manager]:
        """List the registered resource managers with their numbers of nodes. Only for operators."""
        return self.send(op.Managers()).managers

    def register_manager(self, name: str) -> str:
        """Register a manager, for the first time or after a restart. The manager then sends its state."""
        return self.send(op.RegisterManager(name=name)).note

    def remove_manager(self, name: str) -> str:
        """Remove a manager that will not return: its jobs are killed and its nodes leave. Only for operators."""
        return self.send(op.RemoveManager(name=name)).note

    def update_manager(self, name: str, document: Document) -> list[wire.UpdateItem]:
        """Apply a batch of nodes, jobs, allocations to recover, asks and releases. Each item has its own answer."""
        return self.send(op.UpdateManager(name=name, document=cast(Any, document))).items

    def manager_state(self, name: str) -> wire.ManagerState:
        """Return the nodes, jobs and tasks of a manager as the partition knows them. Managers read this when they
        start."""
        return self.send(op.ManagerState(name=name))

    def manager_waiting(self, name: str, jobs: list[str]) -> list[wire.WaitingJob]:
        """Explain why jobs of a manager wait, for many jobs at once."""
        return self.send(op.ManagerWaiting(name=name, document=given(jobs=jobs))).jobs

    def manager_queues(self, name: str) -> list[wire.Queue]:
        """Return all queues with their use, as managers show them to their users."""
        return self.send(op.ManagerQueues(name=name)).queues

    def whoami(self) -> wire.Caller:
        """Return user, groups, role and scope of the caller's token."""
        return self.send(op.Whoami())

    def secrets(self) -> list[str]:
        """List the names of the caller's secrets. Values are sent only to tasks of the caller's jobs."""
        return self.send(op.Secrets()).secrets

    def set_secret(self, name: str, value: str, expires_in: int | float | str | None = None) -> str:
        """Set a secret. Tasks of the caller's jobs that use it get the value when they start, unless it has expired."""
        return self.send(op.SetSecret(name=name, document=given(value=value, expires_in=expires_in))).note

    def remove_secret(self, name: str) -> str:
        """Remove a secret. Tasks that start later do not get it."""
        return self.send(op.RemoveSecret(name=name)).note

    def tokens(self) -> list[wire.Token]:
        """List all tokens, without their secrets, which are not stored. Only for administrators."""
        return self.send(op.Tokens()).tokens

    def create_token(
        self,
        role: Literal["user", "operator", "admin", "join", "manager"],
        user: str = "",
        groups: list[str] | None = None,
        partition: str = "",
        pool: str = "",
        node: str = "",
        users: list[str] | None = None,
        uses: int | None = None,
        note: str = "",
        expires_in: int | float | str | None = None,
        read_only: bool | None = None,
        queue: str = "",
        budget: dict[str, int | float | str] | None = None,
        confirm: bool | None = None,
    ) -> wire.NewToken:
        """Create a token. The answer has its secret, which cannot be shown again. Only for administrators."""
        return self.send(
            op.CreateToken(
                document=given(
                    role=role,
                    user=user or None,
                    groups=groups,
                    partition=partition or None,
                    pool=pool or None,
                    node=node or None,
                    users=users,
                    uses=uses,
                    note=note or None,
                    expires_in=expires_in,
                    read_only=read_only,
                    queue=queue or None,
                    budget=budget,
                    confirm=confirm,
                )
            )
        )

    def revoke_token(self, token: str) -> str:
        """Revoke a token: requests with it are refused, and streams opened with it end. Only for administrators."""
        return self.send(op.RevokeToken(token=token)).note
