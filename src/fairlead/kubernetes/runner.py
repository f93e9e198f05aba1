"""Runs an adapter: watches, link, actions, reasons, leader election, health and metrics.

Nothing is sent to the partition before all lists are complete, and nothing is bound before the partition's state was
compared with them. If the link breaks, the adapter registers again and compares again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from fairlead.client.async_pool import Http, Lost
from fairlead.kubernetes import objects
from fairlead.kubernetes.actions import AT_ONCE, Performer, Target
from fairlead.kubernetes.adapter import Adapter
from fairlead.kubernetes.adapter_health import Health
from fairlead.kubernetes.group_starts import GroupStarts
from fairlead.kubernetes.lease import Election
from fairlead.kubernetes.names import GATE, SCHEDULER
from fairlead.kubernetes.partition_link import Link
from fairlead.kubernetes.pod_reasons import Reasons
from fairlead.kubernetes.provision_requests import Provisioning
from fairlead.kubernetes.queue_objects import QueueObjects
from fairlead.kubernetes.reflector import Follower, pause_after
from fairlead.kubernetes.rules import Rules

BATCH = 0.003
"""Seconds to collect changes for one update."""
LOOK_AGAIN = 2.0

Log = Callable[..., None]
"""Called with an event and its fields."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an adapter."""

    schedulers: tuple[str, ...] = (SCHEDULER,)
    gate: str = GATE
    rules: Rules = msgspec.field(default_factory=Rules)
    changed_rules: Callable[[], Rules | None] = lambda: None
    """Returns the rules if they have changed since the last call."""
    lease: str = ""
    """NAMESPACE/NAME of the lease for leader election; empty for none."""
    listen: str = ""
    """HOST:PORT of `/readyz`, `/healthz` and `/metrics`; empty for none."""
    at_once: int = AT_ONCE
    """Calls to the API server that may be in progress at a time."""


class Runner:
    """One adapter with all its parts."""

    def __init__(self, http: Http, link: Link, settings: Settings, log: Log) -> None:
        self._http = http
        self._link = link
        self._settings = settings
        self._log = log
        self.performer = Performer(http, self._done, self._refused, self._delayed, settings.at_once)
        self.adapter = Adapter(self.performer.add, settings.rules, settings.schedulers, settings.gate)
        self.identity = f"{socket.gethostname()}-{os.getpid()}"
        self.provisioning = Provisioning(
            self.adapter, http, lambda job, problem: log("nodes not requested", job=job, problem=problem)
        )
        self.reasons = Reasons(
            self.adapter,
            link,
            http,
            self.identity,
            lambda: self.performer.waiting() > 0,
            lambda pod, problem: log("reason not written", pod=pod, problem=problem),
            self.provisioning.ask_for,
        )
        self.starts = GroupStarts(
            http,
            self.adapter.objects,
            lambda name, problem: log("group not started", group=name, problem=problem),
            settings.schedulers,
            settings.gate,
        )
        self.queues = QueueObjects(self.adapter, link, http, lambda problem: log("queues not shown", problem=problem))
        self.followers = self._followers()
        self.connected = False
        self.health = Health(self)

    async def run(self, up: Callable[[], None] = lambda: None) -> None:
        """Run until cancelled, or until the lease is lost."""
        settings = self._settings
        namespace, _, name = settings.lease.partition("/")
        election = Election(self._http, namespace, name, self.identity, lambda text: self._log("lease", note=text))
        try:
            async with asyncio.TaskGroup() as group:
                if settings.listen:
                    group.create_task(self.health.serve(settings.listen))
                for follower in self.followers:  # also while another adapter leads: so it can take over within seconds
                    group.create_task(follower.run())
                if settings.lease:
                    await election.win()
                    group.create_task(election.keep())
                self.health.leads = True
                for follower in self.followers:
                    if follower.needed:
                        await follower.synced.wait()
                await self._http.open(settings.at_once)
                self._log("lists complete", nodes=len(self.adapter.nodes), pods=len(self.adapter.members))
                group.create_task(self.performer.run())
                group.create_task(self.reasons.run())
                group.create_task(self.provisioning.run())
                group.create_task(self.starts.run())
                group.create_task(self.queues.run())
                group.create_task(self._look_again())
                up()
                await self._stay_connected()
        finally:
            with suppress(asyncio.CancelledError):
                await election.give_up()
            self._http.close()

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            try:
                await self._link.register()
                state = await self._link.state()
                self.adapter.adopt(state)
                self.connected = True
                self._log("registered", jobs=len(state.jobs), nodes=len(state.nodes))
                failures = 0
                async with asyncio.TaskGroup() as group:
                    sender = group.create_task(self._send())
                    async for events in self._link.events(state.seq):
                        self.adapter.take_events(events)
                    sender.cancel()
                self._log("events were missed; the state is read again")
            except* Lost as lost:
                failures += 1
                self._log("link lost", problem="; ".join(map(str, lost.exceptions)))
            self.connected = self.adapter.adopted = False
            if failures:
                await asyncio.sleep(pause_after(failures))

    async def _send(self) -> None:
        adapter = self.adapter
        while True:
            await adapter.changed.wait()
            await asyncio.sleep(BATCH)
            items = adapter.update()
            if items is None:
                continue
            answers = await self._link.update(items)
            for problem in adapter.answered(items, answers)[:20]:
                self._log("item refused", problem=problem)

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            if (rules := self._settings.changed_rules()) is not None:
                self.adapter.rules = rules
                self.adapter.touch_units(self.adapter.units)
                self._log("rules read again")
            self.adapter.retry()

    def _done(self, target: Target) -> None:
        self.adapter.done(target)

    def _refused(self, target: Target, problem: str) -> None:
        self._log("action refused", verb=target.verb, pod=f"{target.namespace}/{target.name}", problem=problem)
        self.adapter.refused(target, problem)

    def _delayed(self, target: Target, problem: str) -> None:
        self._log("action delayed", verb=target.verb, pod=f"{target.namespace}/{target.name}", problem=problem)

    def _followers(self) -> list[Follower[Any]]:
        adapter = self.adapter

        def note(path: str, problem: str) -> None:
            self._log("watch", path=path, problem=problem)

        def follower(path: str, kind: type, put: Any, drop: Any, **options: Any) -> Follower[Any]:
            return Follower(self._http, path, msgspec.json.Decoder(kind).decode, put, drop, note=note, **options)

        # Succeeded pods use nothing: they leave the selection and are dropped. Failed pods use nothing either, but
        # only their object says whether the kubelet ended them, which is a loss.
        selector = {"fieldSelector": "status.phase!=Succeeded"}
        return [
            follower("/api/v1/nodes", objects.Node, adapter.put_node, adapter.drop_node),
            follower("/api/v1/pods", objects.Pod, adapter.put_pod, adapter.drop_pod, selector=selector),
            *(follower(*followed, optional=True) for followed in adapter.objects.followed()),
            follower(
                "/apis/policy/v1/poddisruptionbudgets",
                objects.DisruptionBudget,
                adapter.budgets.put,
                adapter.budgets.drop,
            ),
            # Nothing waits for this list, which may be long: a gang is complete somewhat later without it.
            follower(
                "/api/v1/pods",
                objects.Pod,
                adapter.objects.put_succeeded,
                adapter.objects.drop_succeeded,
                selector={"fieldSelector": "status.phase=Succeeded"},
                needed=False,
            ),
        ]
