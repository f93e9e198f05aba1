"""Connects the concrete classes for the command line, which does not import them itself."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import msgspec

from fairlead import policies
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.core.ranges import Ranges
from fairlead.core.resources import MEMORY, SECOND, parse_duration, parse_quantity
from fairlead.journal.base import JournalError
from fairlead.journal.sql import SqliteJournal
from fairlead.journal.verify import Progress, StreamReport, verify
from fairlead.pools.settings import check_providers, parse_provider
from fairlead.views.config import config_view

if TYPE_CHECKING:
    import socket

    from prometheus_client import CollectorRegistry
    from structlog.typing import FilteringBoundLogger

    from fairlead.api.control import Control
    from fairlead.api.logfile import LogFile
    from fairlead.core.settings import PartitionConfig
    from fairlead.core.state import Partition
    from fairlead.engines.collecting import Collector
    from fairlead.history.outputs import OutputStore
    from fairlead.history.sqlite import History
    from fairlead.kubernetes.main import Runner
    from fairlead.pools.base import Log, PoolKind, Provider
    from fairlead.wire.agent import OutputPart, Tasks

ADAPTER_PAUSE = 5.0
"""Seconds before an adapter that ended starts again."""
SWEEP = 3600.0
"""Seconds between two removals of old copies of logs."""

__all__ = [
    "Failed",
    "Progress",
    "Serve",
    "StreamReport",
    "checked_config",
    "load_policies",
    "logger_to",
    "refusals_as_failed",
    "serve",
    "verify_journal",
]


USUAL = ("agent joined", "node key renewed")
"""Events of agents that are no warnings."""
LogLevel = Literal["debug", "info", "warning", "error"]


class Failed(Exception):
    """An operation that failed. `field` is the field of a document, if the problem is in one."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem, field)
        self.problem = problem
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


def verify_journal(path: str | os.PathLike[str], progress: Progress) -> Iterator[StreamReport]:
    """Check a journal, stream by stream."""
    try:
        with SqliteJournal(path, read_only=True) as journal:
            yield from verify(journal, progress)
    except JournalError as problem:
        raise Failed(str(problem)) from problem


@contextmanager
def refusals_as_failed() -> Iterator[None]:
    """Raise refusals of the core as `Failed`, which the command line knows."""
    try:
        yield
    except Refused as refusal:
        raise Failed(refusal.problem, refusal.field) from refusal


def check_node(name: str, resources: dict[str, str]) -> None:
    """Raise `Failed` if no node can have this name or these resources."""
    with refusals_as_failed():
        parse_node({"name": name, "resources": {"cpu": 1, **resources}})


def whole_seconds(text: str, field: str) -> int:
    """Return the seconds of a duration, at least 1."""
    with refusals_as_failed():
        return max(1, parse_duration(text, field) // SECOND)


def load_policies() -> None:
    """Load the policies of installed packages, which configurations may name."""
    try:
        policies.load()
    except policies.PolicyError as problem:
        raise Failed(str(problem)) from problem


def checked_config(document: object, defaults: bool) -> dict[str, Any]:
    """Parse and check a configuration, and return it in the form in which it is written."""
    load_policies()
    with refusals_as_failed():
        return config_view(_parsed(document), defaults)


def _parsed(document: object) -> dict[str, PartitionConfig]:
    configs = parse_config(document)
    check_providers(configs)
    return configs


def logger_to(
    out: TextIO | LogFile,
    form: Literal["json", "console"],
    level: LogLevel = "info",
) -> FilteringBoundLogger:
    """Return a logger for `views.logs`, as JSON or for people. It changes no global setting."""
    import structlog  # takes a while, and most commands log nothing

    render: Any = structlog.processors.JSONRenderer()
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=out.isatty())
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, out)),
        [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), render],
        structlog.make_filtering_bound_logger(level),
        dict,
    )
    return logger


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a server. `config` is the configuration document for a journal that has none yet."""

    directory: Path
    url: str
    """The URL for agents on this machine."""
    config: object = None
    config_file: str = ""
    """The file that the user named for `config`."""
    secrets_key: Path | None = None
    """The file with the key of the secrets; by default `key_path` decides."""
    certificate: Path | None = None
    key: Path | None = None
    version: str = ""
    log_size: str
    log_level: LogLevel = "info"
    history_size: str
    outputs: Path | None
    """The folder for logs of nodes that may be gone; by default in the data directory."""
    outputs_size: str
    outputs_age: str
    kubernetes: tuple[str, Path | None, str] = ("", None, "")
    """The kubeconfig file of a cluster whose pods this server schedules, the file of rules, and the lease."""


async def serve(settings: Serve, listening: socket.socket, up: Callable[[str], None], over: asyncio.Event) -> None:
    """Run the control plane and the API on a data directory until `over` is set.

    Call `up` when requests are served, with a warning for the user or an empty text.
    The imports are inside because they take a while; the caller starts the agent first.
    """
    from fairlead.api.context import Services
    from fairlead.api.control import Control
    from fairlead.api.identities import Identities
    from fairlead.api.logfile import LogFile
    from fairlead.api.middleware import Bounds
    from fairlead.api.quotas import Quotas
    from fairlead.api.routes import application
    from fairlead.api.sealed import key_path
    from fairlead.api.secrets import Secrets
    from fairlead.api.server import server
    from fairlead.api.smallfile import FileProblem
    from fairlead.api.tokens import Tokens
    from fairlead.api.walltime import in_seconds, kept_wall
    from fairlead.engines.agents import Agents
    from fairlead.engines.base import Ended
    from fairlead.engines.collecting import Collector
    from fairlead.history.outputs import OutputStore
    from fairlead.history.recorder import HistoryRecorder
    from fairlead.history.sqlite import History, Used
    from fairlead.journal.room import need_room
    from fairlead.journal.snapshot import Snapshots
    from fairlead.pools.base import Join, ProviderError
    from fairlead.pools.figures import Figures
    from fairlead.pools.service import PoolService
    from fairlead.views.logs import Logs
    from fairlead.views.metrics.observer import Metrics
    from fairlead.writer.memory import spare_the_collector

    load_policies()
    directory = settings.directory
    with refusals_as_failed():
        log_size = parse_quantity(MEMORY, settings.log_size, "--log-size")
        history_size = parse_quantity(MEMORY, settings.history_size, "--history-size")
        outputs_size = parse_quantity(MEMORY, settings.outputs_size, "--outputs-size")
        outputs_age = parse_duration(settings.outputs_age, "--outputs-age") / SECOND
    log_file = LogFile(directory / "server.log", log_size)
    log = logger_to(log_file, "json", settings.log_level)
    metrics = Metrics()
    quotas = Quotas()
    history = History(directory / "history", history_size, note=lambda text: log.error("history", problem=text))
    threading.excepthook = lambda ended: log.error(
        "thread ended", thread=ended.thread.name if ended.thread else "", error=repr(ended.exc_value)
    )
    snapshots: dict[str, Snapshots] = {}

    def used(ended: list[Ended]) -> None:
        history.put_used(
            [
                Used(
                    task.partition,
                    task.number,
                    task.stage,
                    task.index,
                    task.attempt,
                    task.signal,
                    task.ran,
                    task.cpu,
                    task.memory,
                    task.node if task.stale else "",
                )
                for task in ended
            ]
        )
        collector.ended(ended)

    def pool_log(level: str, event: str, fields: dict[str, Any]) -> None:
        (log.warning if level == "warning" else log.info)(event, **fields)

    def after_cycle(partition: str, seq: int) -> None:
        if partition not in snapshots:
            snapshots[partition] = Snapshots(directory / "journal", partition, seq)
        snapshots[partition].poll(seq)

    try:
        wall = kept_wall(directory / "clock", lambda text: log.warning("clock leapt", problem=text))
        seconds = in_seconds(wall)
        secrets = Secrets(directory / "secrets", key_path(directory, settings.secrets_key), seconds)
        tokens = Tokens(directory / "tokens", seconds)
        identities = Identities(directory, tokens)
    except FileProblem as problem:
        raise Failed(str(problem)) from problem
    try:
        outputs = OutputStore(settings.outputs or directory / "outputs", outputs_size, outputs_age, seconds)
    except OSError as problem:
        raise Failed(f"{problem.filename}: {problem.strerror}; name another folder with --outputs") from problem
    lock = directory / "server.lock"
    running = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(running, fcntl.LOCK_SH)  # released when this process ends
    hub = Agents(
        identities,
        log=lambda event, fields: (log.info if event in USUAL else log.warning)(event, **fields),
        secrets=secrets.values,
        ended=used,
        gang_seed=secrets.gang_seed,
        lock=str(lock.resolve()),
    )

    collector = Collector(
        hub,
        _store_in(outputs),
        _owner_of_job(lambda: control, history),
        lambda event, fields: log.warning(event, **fields),
        history.mark_copied,
    )
    resumed = asyncio.Event()

    async def settle(partition: str, nodes: Sequence[str]) -> None:
        await resumed.wait()  # before that, it is not known what has to be copied
        await collector.settle(partition, nodes)

    def invite(partition: str, pool: str, names: Sequence[str]) -> dict[str, str]:
        try:
            tokens = identities.invite(names, partition, pool, note=f"for a machine of pool {pool}")
        except (FileProblem, Refused) as problem:
            raise ProviderError(str(problem), names) from problem
        return {name: secret for name, (secret, _) in zip(names, tokens, strict=True)}

    def forget(partition: str, names: Sequence[str]) -> None:
        try:
            identities.forget(partition, names)
        except FileProblem as problem:
            log.warning("credentials not removed", problem=str(problem))

    pools = PoolService(
        lambda kind: provider_of(kind, directory / "pools", pool_log),
        Join(settings.url, invite, forget),
        Figures(metrics.registry),
        pool_log,
        settle=settle,
    )

    def open_journal() -> SqliteJournal:
        need_room(directory)
        return SqliteJournal(directory / "journal")

    first = None if settings.config is None else _parsed(settings.config)
    control = Control(
        open_journal,
        hub,
        [metrics, Logs(log), HistoryRecorder(history), quotas],
        first,
        after_cycle,
        lambda text: log.error("control plane", problem=text),
        pools,
        wall,
    )
    site = Services(
        control,
        hub,
        history,
        tokens,
        identities,
        secrets,
        metrics,
        Bounds(),
        quotas,
        settings.version,
        lambda error: log.error("fault", error=repr(error), exc_info=error),
        lambda event, fields: log.info(event, **fields),
        outputs,
    )
    try:
        await control.start()
        await _resume_copies(control, history, collector)
    except JournalError as problem:
        raise Failed(str(problem)) from problem
    resumed.set()
    make_adapter = _adapter_maker(settings.kubernetes, control, log.info)
    http = server(application(site), settings.certificate, settings.key)
    serving = asyncio.create_task(http.serve(sockets=[listening]))
    sweeping = asyncio.create_task(_sweep(outputs))
    adapting = asyncio.create_task(_adapt(make_adapter, log.info, metrics.registry))
    try:
        spare_the_collector()
        warning = ""
        if settings.config_file and control.configured[1] != first:
            file = settings.config_file
            warning = (
                f"{file} was not applied: the data directory has a configuration; run `fairlead config apply {file}`"
            )
            log.warning("configuration not applied", file=file)
        up(warning)
        await over.wait()
    finally:
        adapting.cancel()
        await asyncio.gather(adapting, return_exceptions=True)
        http.should_exit = True
        await serving
        await control.close()
        sweeping.cancel()
        await collector.close()
        os.close(running)
        for snapshot in snapshots.values():
            snapshot.close()
        history.close()
        log_file.close()


def _store_in(outputs: OutputStore) -> Callable[[str, str, Tasks, OutputPart], None]:
    """Return a function that stores the part of some tasks' logs that an agent sent."""
    from fairlead.wire.agent import LogRequest

    def store(partition: str, user: str, tasks: Tasks, part: OutputPart) -> None:
        asked = Ranges(tasks.indices)
        pieces: list[tuple[LogRequest, int, bytes]] = []
        for item in part.outputs:
            if item.index in asked:
                log_of = LogRequest(0, tasks.number, tasks.stage, item.index, tasks.attempt, item.stream, user=user)
                pieces.append((log_of, item.offset, item.data))
        outputs.write(partition, pieces)

    return store


def _owner_of_job(control: Callable[[], Control], history: History) -> Callable[[str, str, int], Awaitable[str]]:
    """Return a function that finds the user of a job by id and number, also after the job was forgotten."""
    from fairlead.api.problems import Unserved
    from fairlead.engines.base import Away

    async def user_of(partition: str, job_id: str, number: int) -> str:
        def look(state: Partition) -> str:
            job = state.jobs.get(job_id)
            return "" if job is None or job.number != number else job.spec.user

        try:
            user = await control().find(partition).read(look)
        except (Refused, Unserved):
            raise Away("the partition is not served now") from None
        if user:
            return user
        row = await asyncio.to_thread(history.job, partition, job_id)
        return "" if row is None or row.number != number else row.user

    return user_of


async def _resume_copies(control: Control, history: History, collector: Collector) -> None:
    """Have the logs copied that an earlier server has not copied, from nodes of pools that still exist."""

    def nodes_of_pools(state: Partition) -> list[str]:
        nodes = state.nodes
        return [nodes.name[row] for row in nodes.rows.values() if nodes.pool[row]]

    for partition in control.names():
        nodes = await control.find(partition).read(nodes_of_pools)
        for node, tasks in await asyncio.to_thread(history.not_copied, partition, nodes):
            collector.add((partition, node), tasks)


async def _sweep(outputs: OutputStore) -> None:
    """Remove old copies of logs from time to time."""
    while True:
        await asyncio.sleep(SWEEP)
        await asyncio.to_thread(outputs.shrink)


def _adapter_maker(
    cluster: tuple[str, Path | None, str], control: Control, log: Callable[..., None]
) -> Callable[[], Runner] | None:
    """Return a function that makes the adapter for a Kubernetes cluster; None if no cluster is named."""
    kubeconfig, rules, lease = cluster
    if not kubeconfig:
        return None
    from fairlead.api.link import DirectLink
    from fairlead.kubernetes.http import Lost
    from fairlead.kubernetes.process import Options, Unusable, make_runner

    options = Options(kubeconfig="" if kubeconfig == "pod" else kubeconfig, rules=rules, lease=lease)

    def make() -> Runner:
        return make_runner(options, DirectLink(control, options.name, "", Lost), log)

    try:
        make()  # what is wrong with the options is told now
    except Unusable as problem:
        raise Failed(str(problem)) from problem
    return make


async def _adapt(make: Callable[[], Runner] | None, log: Callable[..., None], registry: CollectorRegistry) -> None:
    """Schedule the pods of a Kubernetes cluster. If the adapter ends, another one starts."""
    while make is not None:
        runner = make()
        registry.register(runner.health)
        try:
            await runner.run()
        except Exception as problem:
            log("adapter ended", problem=repr(problem))
        finally:
            registry.unregister(runner.health)
        await asyncio.sleep(ADAPTER_PAUSE)


def rotate_secrets_key(directory: Path, given: Path | None) -> Path:
    """Encrypt the secrets of a data directory with a new key, and return the key file. The server must be stopped."""
    from fairlead.api.sealed import SealedFile, key_path
    from fairlead.api.smallfile import FileProblem

    try:
        key = key_path(directory, given)
        SealedFile(directory / "secrets", key).rotate()
    except FileProblem as problem:
        raise Failed(str(problem)) from problem
    return key


def end_local_machines(directory: Path) -> int:
    """End pool machines that are processes on this machine, and return their number. Other machines stay."""
    from fairlead.pools.base import ProviderError
    from fairlead.pools.local import end_machines

    try:
        return end_machines(directory / "pools")
    except (OSError, ProviderError) as problem:
        raise Failed(f"machines of pools: {problem}; end them by hand") from problem


def provider_of(kind: PoolKind, folder: Path, log: Log) -> Provider:
    """Return the provider that the settings of a pool name. Local machines have their files in `folder`."""
    from fairlead.pools.command import CommandProvider
    from fairlead.pools.local import LocalProvider

    settings = parse_provider(kind.settings, f"partitions.{kind.partition}.pools.{kind.pool}")
    if settings.kind == "local":
        return LocalProvider(kind, folder / kind.partition / kind.pool, log)
    return CommandProvider(kind, settings.command, settings.timeout)
