"""Connects the parts of a server and runs them. Importing it is slow, so commands import it only if they need it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from structlog.typing import FilteringBoundLogger

from fairlead.control.control import Control
from fairlead.control.dependencies import Dependencies
from fairlead.control.quotas import UNBOUNDED, Quotas
from fairlead.control.walltime import Nanoseconds, in_seconds, kept_wall
from fairlead.core.settings import DEFAULT_CONFIG, PartitionConfig
from fairlead.engines.agents import Agents
from fairlead.forecast.previewer import Previewer
from fairlead.history.outputs import OutputStore
from fairlead.history.promised_starts import PromisedStarts
from fairlead.history.recorder import HistoryRecorder
from fairlead.http.application import application
from fairlead.http.context import Services
from fairlead.http.middleware import Bounds
from fairlead.http.server import server
from fairlead.identity.node_keys import Identities
from fairlead.identity.sealed import key_path
from fairlead.identity.secrets import Secrets
from fairlead.identity.tokens import Tokens
from fairlead.journal.disk_space import room_on
from fairlead.pools.pool_service import Figures, PoolService
from fairlead.server.background import refresh, sweep
from fairlead.server.failure import load_policies, parsed_config, storage_problems_as_failed
from fairlead.server.logfile import Telemetry
from fairlead.server.notices import SIGNING_SECRET, Door, Notices
from fairlead.server.output_collection import OutputCollection
from fairlead.server.providers import join_by, provider_of
from fairlead.server.start_options import Limits, ServerOptions, limits_of
from fairlead.server.storage import Storage, documents_of, output_place
from fairlead.writer.gc_settings import spare_the_collector

AGENT_JOINED = "agent joined"
USUAL = (AGENT_JOINED, "node key renewed")
"""Events of agents that are no warnings."""
SWITCH = 0.001
"""Seconds that a thread computes before another thread gets its turn. With Python's default of 5 ms, a long cycle of
one partition would delay every step of each request."""


class Identity(NamedTuple):
    """Tokens, node keys and secrets, which the servers of a database share."""

    tokens: Tokens
    nodes: Identities
    secrets: Secrets

    def refresh(self) -> None:
        """Reload what other servers wrote."""
        for documents in self:
            documents.refresh()


class Parts(NamedTuple):
    """The parts of a server."""

    telemetry: Telemetry
    storage: Storage
    wall: Nanoseconds
    identity: Identity
    outputs: OutputStore
    collection: OutputCollection
    lock: int
    control: Control
    preview: Previewer
    services: Services


async def serve(
    options: ServerOptions,
    listening: socket.socket,
    up: Callable[[str], None],
    over: asyncio.Event,
    joined: Callable[[], None] = lambda: None,
) -> None:
    """Run a server until `over` is set.

    `up` is called when requests are served, with a warning for the user or an empty text. `joined` is called when an
    agent joins.
    """
    load_policies()
    sys.setswitchinterval(SWITCH)
    limits = limits_of(options)
    first = {"default": DEFAULT_CONFIG} if options.config is None else parsed_config(options.config)
    parts = await compose(options, limits, first, joined)
    with storage_problems_as_failed():
        await parts.control.start()
    work = background_work(options, limits, parts)
    http = server(application(parts.services), options.certificate, options.key)
    serving = asyncio.create_task(http.serve(sockets=[listening]))
    tasks = [asyncio.create_task(each) for each in work]
    try:
        spare_the_collector()
        unapplied = unapplied_config(options, first, parts)
        unsafe = await asyncio.to_thread(parts.storage.warnings)
        for text in unsafe:
            parts.telemetry.log.warning("database not safe", problem=text)
        up("; ".join([*unapplied, *unsafe]))
        await over.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        http.should_exit = True
        await serving
        await parts.preview.close()
        await parts.control.close()
        await parts.collection.close()
        os.close(parts.lock)
        parts.storage.close()
        await asyncio.to_thread(parts.telemetry.close)


async def compose(
    options: ServerOptions, limits: Limits, first: dict[str, PartitionConfig], joined: Callable[[], None]
) -> Parts:
    """Make the parts of a server and connect them, without starting them."""
    room = UNBOUNDED if options.database else room_on(options.directory)
    telemetry, quotas = Telemetry(options, limits), Quotas(room)
    log = telemetry.log
    storage = Storage(options, limits, log)
    with storage_problems_as_failed():
        wall = kept_wall(options.directory / "clock", lambda text: log.warning("clock leapt", problem=text))
        identity = open_identity(options, wall)
    place = await asyncio.to_thread(output_place, options)
    outputs = OutputStore(place, limits.outputs_size, limits.outputs_age, in_seconds(wall))
    promised = PromisedStarts(storage.history, telemetry.metrics.registry)
    collection = OutputCollection(storage.history, outputs, log)
    lock_path = options.directory / "server.lock"
    lock = shared_lock(lock_path)
    hub = Agents(
        identity.nodes,
        log=agent_log(log, joined),
        secrets=identity.secrets.values,
        ended=collection.ended,
        gang_seed=identity.secrets.gang_seed,
        lock=str(lock_path.resolve()),
        collected=collection.collected,
    )

    def addresses() -> str:
        """Return the addresses of all servers, at which agents of new machines find a leader."""
        return ",".join(sorted({options.url, *(member.address for member in control.membership.members)} - {""}))

    def pool_log(level: str, event: str, fields: dict[str, Any]) -> None:
        (log.warning if level == "warning" else log.info)(event, **fields)

    def on_lead(partition: str) -> None:
        identity.refresh()
        collection.resume_soon(partition)

    pools = PoolService(
        lambda kind: provider_of(kind, options.directory / "pools", pool_log),
        join_by(identity.nodes, addresses, pool_log),
        Figures(telemetry.metrics.registry),
        pool_log,
        settle=collection.settle,
    )
    control = Control(
        Dependencies(
            storage.open_journal,
            hub,
            [*telemetry.observers(), promised, HistoryRecorder(storage.history), quotas],
            first,
            storage.snapshot,
            lambda text: log.error("control plane", problem=text),
            pools,
            wall,
            on_lead=on_lead,
            cores=os.cpu_count() or 1,
            on_end=telemetry.metrics.forget,
            inform=lambda text: log.info("control plane", text=text),
            roster=storage.roster(),
        )
    )
    collection.connect(hub, control)
    preview = Previewer(storage.journal_place, storage.history_place)
    services = Services(
        control,
        hub,
        storage.history,
        identity.tokens,
        identity.nodes,
        identity.secrets,
        telemetry.metrics,
        Bounds(written_burst=min(Bounds().written_burst, 2 * room), mail_domains=options.mail_domains),
        quotas,
        promised,
        options.version,
        lambda error: log.error("fault", error=repr(error), exc_info=error),
        lambda event, fields: log.info(event, **fields),
        outputs,
        collection.collector.expected,
        preview,
    )
    return Parts(telemetry, storage, wall, identity, outputs, collection, lock, control, preview, services)


def open_identity(options: ServerOptions, wall: Nanoseconds) -> Identity:
    documents, seconds = documents_of(options.directory, options.database, options.secrets_key), in_seconds(wall)
    secrets = Secrets(documents("secrets"), key_path(options.directory, options.secrets_key), seconds)
    tokens = Tokens(documents("tokens"), seconds)
    return Identity(tokens, Identities(documents, tokens), secrets)


def shared_lock(path: Path) -> int:
    """Lock a file, which several servers may share, until this process ends. Agents of this machine watch the lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def agent_log(log: FilteringBoundLogger, joined: Callable[[], None]) -> Callable[[str, dict[str, Any]], None]:
    """Return a function that logs events of agents, and calls `joined` when one joins."""

    def write(event: str, fields: dict[str, Any]) -> None:
        (log.info if event in USUAL else log.warning)(event, **fields)
        if event == AGENT_JOINED:
            joined()

    return write


def background_work(options: ServerOptions, limits: Limits, parts: Parts) -> list[Coroutine[Any, Any, None]]:
    """Return the work that runs until the server ends: upkeep, and the Kubernetes adapter if a cluster is named."""
    log, wall = parts.telemetry.log, parts.wall
    work: list[Coroutine[Any, Any, None]] = []
    if options.kubernetes[0]:
        from fairlead.server.embedded_adapter import KubernetesAdapter

        registry = parts.telemetry.metrics.registry
        work.append(KubernetesAdapter(options.kubernetes, parts.control, log.info, registry).run())
    if options.database:
        work.append(refresh([each.refresh for each in parts.identity]))
    notices = Notices(
        parts.storage.history,
        parts.control.led,
        lambda user: parts.identity.secrets.values(user, (SIGNING_SECRET,)).get(SIGNING_SECRET, ""),
        Door(options.notify_allow, options.sendmail),
        lambda event, fields: log.info(event, **fields),
    )
    work.append(notices.run())
    work.append(sweep(parts.outputs, parts.storage.history, lambda: wall() // 1_000, limits.history_age, log))
    return work


def unapplied_config(options: ServerOptions, first: dict[str, PartitionConfig], parts: Parts) -> list[str]:
    """Return a warning if the journal has another configuration than the file that the user named."""
    file = options.config_file
    if not file or not parts.control.led() or parts.control.last_configured == first:
        return []
    parts.telemetry.log.warning("configuration not applied", file=file)
    place = "database" if options.database else "data directory"
    return [f"{file} was not applied: the {place} has a configuration; run `fairlead config apply {file}`"]
