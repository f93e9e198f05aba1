"""Builds the running programs from their concrete classes, for the command line, which does not import them itself."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import msgspec

from fairlead import policies
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.core.ranges import Ranges, difference
from fairlead.core.ranges import indices as each_index
from fairlead.core.resources import MEMORY, SECOND, parse_duration, parse_quantity
from fairlead.journal.base import Journal, JournalError
from fairlead.journal.opening import is_url, need_driver, open_journal
from fairlead.journal.sql import SqliteJournal
from fairlead.journal.verify import Progress, StreamReport, verify
from fairlead.pools.settings import check_providers, parse_provider
from fairlead.views.config import config_view

if TYPE_CHECKING:
    import socket

    from prometheus_client import CollectorRegistry
    from structlog.typing import FilteringBoundLogger

    from fairlead.api.control import Control
    from fairlead.api.identities import Documents
    from fairlead.api.logfile import LogFile
    from fairlead.core.settings import PartitionConfig
    from fairlead.core.state import Partition
    from fairlead.engines.collecting import Collector, Node, Source
    from fairlead.history.outputs import OutputStore
    from fairlead.history.store import History
    from fairlead.history.stores import Store
    from fairlead.journal.roster import Roster
    from fairlead.kubernetes.main import Runner
    from fairlead.pools.base import Log, PoolKind, Provider
    from fairlead.views.spansender import SpanSender
    from fairlead.wire.agent import Tasks

REFRESH = 2.0
"""Seconds between two checks for changes by other servers."""
ADAPTER_PAUSE = 5.0
"""Seconds before an adapter that ended starts again."""
SWEEP = 3600.0
"""Seconds between two removals of old output."""

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


JOINED = "agent joined"
USUAL = (JOINED, "node key renewed")
"""Events of agents that are not warnings."""
SERVER_KEY = "server-key"
FIRST_PAUSE = 0.1
RESUMES = 600
"""Attempts to resume copying logs of a partition that is not served yet."""
LED_PAUSE = 0.5
"""Seconds between two checks whether this server leads a partition."""
SHORTEST_LEASE, LONGEST_LEASE = 1.0, 300.0
SWITCH = 0.001
"""Seconds after which a thread in a long cycle lets another thread run. Python's default of 5 ms delays every step of a
request while any partition is in a long cycle."""
LogLevel = Literal["debug", "info", "warning", "error"]


class Failed(Exception):
    """Raised if an operation failed. `field` is the field of a document, if the problem is in one."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem, field)
        self.problem = problem
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


def verify_journal(place: str | os.PathLike[str], progress: Progress) -> Iterator[StreamReport]:
    """Check the journal in a file or a database, stream by stream."""
    try:
        with open_journal(place, read_only=True) as journal:
            yield from verify(journal, progress)
    except JournalError as problem:
        raise Failed(str(problem)) from problem


def shown_place(place: str) -> str:
    """Return the location of a journal for messages, without passwords."""
    if not is_url(place):
        return place
    from fairlead.journal.pgconnection import shown_url

    return shown_url(place)


@contextmanager
def refusals_as_failed() -> Iterator[None]:
    """Raise refusals of the core as `Failed`, which the command line handles."""
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
    """Parse and check a configuration, and return it as it would be written in a file."""
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
    import structlog  # slow to import, and most commands log nothing

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
    """Settings of a server. `config` is the configuration document for a new journal."""

    directory: Path
    url: str
    """The URL for agents on this machine, and for other servers on the database."""
    database: str = ""
    """The address of a PostgreSQL database for all data that must not be lost. The default is the data directory."""
    lease: str = "3s"
    """How long this server leads after it last renewed a lease on PostgreSQL."""
    config: object = None
    config_file: str = ""
    """The file that the user named for `config`."""
    secrets_key: Path | None = None
    """The file with the key of the secrets; the default is that of `key_path`."""
    certificate: Path | None = None
    key: Path | None = None
    version: str = ""
    log_size: str
    log_level: LogLevel = "info"
    history_size: str
    history_age: str = ""
    """The age at which jobs leave the history; by default only its size is limited."""
    journal_age: str = "1h"
    """How long records are kept, so that backups can be restored to an earlier time."""
    outputs: str = ""
    """Where output of tasks is stored: a folder, by default in the data directory, or s3://BUCKET/PREFIX."""
    outputs_endpoint: str = ""
    """The address of the object store; the default is AWS."""
    outputs_size: str
    outputs_age: str
    traces: str = ""
    """The address of an OpenTelemetry collector for spans of jobs; empty for none."""
    kubernetes: tuple[str, Path | None, str] = ("", None, "")
    """The kubeconfig file of a cluster whose pods this server schedules, the file of rules, and the lease."""


async def serve(
    settings: Serve,
    listening: socket.socket,
    up: Callable[[str], None],
    over: asyncio.Event,
    joined: Callable[[], None] = lambda: None,
) -> None:
    """Run the control plane and the API on a data directory until `over` is set.

    Calls `up` when requests are served, with a warning for the user or an empty text, and `joined` when an agent joins.
    The imports are inside because they are slow; the caller starts the agent first.
    """
    from fairlead.api.context import Services
    from fairlead.api.control import Control
    from fairlead.api.identities import Identities
    from fairlead.api.logfile import LogFile
    from fairlead.api.middleware import Bounds
    from fairlead.api.problems import Unserved
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
    from fairlead.history.recorder import HistoryRecorder, ResultRow
    from fairlead.history.store import History, Used
    from fairlead.journal.room import need_room
    from fairlead.journal.snapshot import Snapshots
    from fairlead.pools.base import Join, ProviderError
    from fairlead.pools.figures import Figures
    from fairlead.pools.service import PoolService
    from fairlead.sim.preview.asking import Previewer
    from fairlead.views.logs import Logs
    from fairlead.views.metrics.observer import Metrics
    from fairlead.views.spans import Spans
    from fairlead.writer.memory import spare_the_collector

    load_policies()
    sys.setswitchinterval(SWITCH)
    directory = settings.directory
    with refusals_as_failed():
        log_size = parse_quantity(MEMORY, settings.log_size, "--log-size")
        history_size = parse_quantity(MEMORY, settings.history_size, "--history-size")
        outputs_size = parse_quantity(MEMORY, settings.outputs_size, "--outputs-size")
        outputs_age = parse_duration(settings.outputs_age, "--outputs-age") / SECOND
        history_age = parse_duration(settings.history_age, "--history-age") if settings.history_age else 0
        journal_age = parse_duration(settings.journal_age, "--journal-age") // SECOND
        lease = parse_duration(settings.lease, "--lease") / SECOND
        if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            raise Refused("--lease", f"it is {settings.lease}; a lease has {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} s")
    log_file = LogFile(directory / "server.log", log_size)
    log = logger_to(log_file, "json", settings.log_level)
    metrics = Metrics()
    quotas = Quotas()
    spans = _span_sender(settings.traces, settings.version, metrics.registry) if settings.traces else None
    try:
        documents = documents_of(directory, settings.database, settings.secrets_key)
        history = History(
            settings.database or directory / "history",
            history_size,
            note=lambda text: log.error("history", problem=text),
        )
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem
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

    def collected(partition: str, node: str, tasks: Tasks) -> None:
        collector.collected(partition, node, tasks)

    def pool_log(level: str, event: str, fields: dict[str, Any]) -> None:
        (log.warning if level == "warning" else log.info)(event, **fields)

    def after_cycle(partition: str, seq: int) -> None:
        if partition not in snapshots:
            place = settings.database or directory / "journal"
            snapshots[partition] = Snapshots(place, partition, seq, age=journal_age)
        snapshots[partition].poll(seq)

    try:
        wall = kept_wall(directory / "clock", lambda text: log.warning("clock leapt", problem=text))
        seconds = in_seconds(wall)
        secrets = Secrets(documents("secrets"), key_path(directory, settings.secrets_key), seconds)
        tokens = Tokens(documents("tokens"), seconds)
        identities = Identities(documents, tokens)
    except FileProblem as problem:
        raise Failed(str(problem)) from problem
    outputs = OutputStore(await asyncio.to_thread(_store_of, settings), outputs_size, outputs_age, seconds)
    lock = directory / "server.lock"
    running = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(running, fcntl.LOCK_SH)  # released when this process ends

    def agent_log(event: str, fields: dict[str, Any]) -> None:
        (log.info if event in USUAL else log.warning)(event, **fields)
        if event == JOINED:
            joined()

    hub = Agents(
        identities,
        log=agent_log,
        secrets=secrets.values,
        ended=used,
        gang_seed=secrets.gang_seed,
        lock=str(lock.resolve()),
        collected=collected,
    )

    def record(partition: str, number: int, rows: list[ResultRow], replace: bool) -> None:
        for row in history.put_results(partition, number, rows, replace):
            if not row.warning:
                continue
            log.warning(
                "results incomplete",
                partition=partition,
                number=number,
                stage=row.stage,
                index=row.index,
                attempt=row.attempt,
                problem=row.warning,
            )

    collector = Collector(
        hub,
        lambda partition, source, tasks, logs: outputs.receive(
            partition, source.user, tasks, (source.max_files, source.max_bytes), record, only_results=not logs
        ),
        _source_of(lambda: control, history),
        lambda event, fields: log.warning(event, **fields),
        history.mark_copied,
    )
    resumed: dict[str, asyncio.Event] = {}
    """Partition → set when the logs that an earlier leader did not copy are known."""

    async def settle(partition: str, nodes: Sequence[str]) -> None:
        await resumed.setdefault(partition, asyncio.Event()).wait()
        await collector.settle(partition, nodes)

    def invite(partition: str, pool: str, names: Sequence[str]) -> dict[str, str]:
        try:
            tokens = identities.invite(names, partition, pool, note=f"for a machine of pool {pool}")
        except (FileProblem, Refused) as problem:
            raise ProviderError(str(problem), names) from problem
        return {name: secret for name, (secret, _) in zip(names, tokens, strict=True)}

    def addresses() -> str:
        """Return the addresses at which agents of new machines find a leader: this server and the others."""
        return ",".join(sorted({settings.url, *(member.address for member in control.standing.members)} - {""}))

    def forget(partition: str, names: Sequence[str]) -> None:
        try:
            identities.forget(partition, names)
        except FileProblem as problem:
            log.warning("credentials not removed", problem=str(problem))

    pools = PoolService(
        lambda kind: provider_of(kind, directory / "pools", pool_log),
        Join(addresses, invite, forget),
        Figures(metrics.registry),
        pool_log,
        settle=settle,
    )

    server_id = token_hex(8)

    roster: Roster | None = None
    if settings.database:
        from fairlead.journal.pgroster import PostgresRoster

        roster = PostgresRoster(settings.database, server_id, settings.url, lease)

    turn = threading.Lock()

    def opened() -> Journal:
        if settings.database:
            from fairlead.journal.postgresql import PostgresJournal

            return PostgresJournal(settings.database, server_id, settings.url, lease)
        need_room(directory)
        return SqliteJournal(directory / "journal", turn=turn)

    loop = asyncio.get_running_loop()
    shared = (tokens, identities, secrets)
    resuming: set[asyncio.Task[None]] = set()

    def leads(partition: str) -> None:
        """Reload what other servers wrote, and copy the logs that an earlier leader did not copy."""
        for each in shared:
            each.refresh()
        loop.call_soon_threadsafe(resume, partition)

    def resume(partition: str) -> None:
        resumed.setdefault(partition, asyncio.Event()).clear()
        task = asyncio.create_task(resume_later(partition))
        resuming.add(task)
        task.add_done_callback(resuming.discard)

    async def resume_later(partition: str) -> None:
        for _ in range(RESUMES):  # the partition is served soon, unless another server has taken it over
            with suppress(Unserved, Refused):
                await _resume_copies(control, partition, history, collector)
                resumed[partition].set()
                return
            await asyncio.sleep(FIRST_PAUSE)

    first = None if settings.config is None else _parsed(settings.config)
    control = Control(
        opened,
        hub,
        [metrics, Logs(log), HistoryRecorder(history), quotas, *([Spans(spans.send, spans.left_out)] if spans else ())],
        first,
        after_cycle,
        lambda text: log.error("control plane", problem=text),
        pools,
        wall,
        leads=leads,
        roster=roster,
    )
    preview = Previewer(settings.database or directory / "journal", settings.database or directory / "history")
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
        collector.expected,
        preview,
    )
    try:
        await control.start()
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem
    make_adapter = _adapter_maker(settings.kubernetes, control, log.info)
    http = server(application(site), settings.certificate, settings.key)
    serving = asyncio.create_task(http.serve(sockets=[listening]))

    def oldest() -> int:
        return wall() // 1_000 - history_age if history_age else 0

    sweeping = asyncio.create_task(_sweep(outputs, history, oldest, log))
    refreshing = asyncio.create_task(_refresh([each.refresh for each in shared])) if settings.database else None
    adapting = asyncio.create_task(_adapt(make_adapter, control, log.info, metrics.registry))
    try:
        spare_the_collector()
        warning = ""
        if settings.config_file and control.led() and control.last_configured != first:
            file = settings.config_file
            warning = (
                f"{file} was not applied: the {'database' if settings.database else 'data directory'} has a "
                f"configuration; run `fairlead config apply {file}`"
            )
            log.warning("configuration not applied", file=file)
        unsafe = await asyncio.to_thread(_database_warnings, settings.database) if settings.database else []
        for text in unsafe:
            log.warning("database not safe", problem=text)
        up("; ".join([*filter(None, [warning]), *unsafe]))
        await over.wait()
    finally:
        adapting.cancel()
        await asyncio.gather(adapting, return_exceptions=True)
        http.should_exit = True
        await serving
        await preview.close()
        await control.close()
        if spans is not None:
            await asyncio.to_thread(spans.close)
        sweeping.cancel()
        for task in (*resuming, *([refreshing] if refreshing else ())):
            task.cancel()
        await collector.close()
        os.close(running)
        for snapshot in snapshots.values():
            snapshot.close()
        history.close()
        log_file.close()


def _span_sender(endpoint: str, version: str, registry: CollectorRegistry) -> SpanSender:
    """Return the sender of spans to a collector. Raise `Failed` if it cannot be used."""
    from urllib.parse import urlsplit

    from fairlead.views.spansender import SpanSender

    with suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port):
            try:
                return SpanSender(endpoint, version, registry)
            except ImportError as problem:
                raise Failed(f"{problem}; install the extra: pip install 'fairlead[otel]'", "--traces") from problem
    raise Failed(f"{endpoint} is not an address such as http://127.0.0.1:4318/v1/traces", "--traces")


def _store_of(settings: Serve) -> Store:
    """Return the store that the settings name. Raises `Failed` if it cannot be used."""
    from fairlead.history.s3 import SCHEME, ObjectStore, Unusable
    from fairlead.history.stores import FolderStore

    named = settings.outputs
    try:
        if named.startswith(SCHEME):
            return ObjectStore(named, settings.directory / "incoming", settings.outputs_endpoint)
        if "://" in named:
            raise Unusable(f"{named} is neither a folder nor s3://BUCKET/PREFIX; write one of them with --outputs")
        if settings.outputs_endpoint:
            raise Unusable("--outputs-endpoint is for an object store; name one with --outputs s3://BUCKET/PREFIX")
        return FolderStore(Path(named) if named else settings.directory / "outputs")
    except Unusable as problem:
        raise Failed(str(problem)) from problem
    except OSError as problem:
        raise Failed(f"{problem.filename}: {problem.strerror}; name another folder with --outputs") from problem


def _source_of(control: Callable[[], Control], history: History) -> Callable[[Node, Tasks, bool], Awaitable[Source]]:
    """Return a function that finds the user of tasks and the limits on their result files, also for past jobs.

    If its last argument is True, it leaves out tasks that did not run on the node: a node must not add to the results
    of other tasks.
    """
    from fairlead.api.problems import Unserved
    from fairlead.engines.base import Away
    from fairlead.engines.collecting import Source
    from fairlead.wire.agent import Tasks

    async def source_of(node: Node, tasks: Tasks, check: bool) -> Source:
        def look(state: Partition) -> tuple[Source, tuple[int, ...]]:
            settings = state.settings
            job = state.jobs.get(tasks.job)
            stage = job.stage(tasks.stage) if job is not None and job.number == tasks.number else None
            user = "" if job is None or job.number != tasks.number else job.spec.user
            node_id = state.nodes.find(node[1])
            live = (stage.live or {}) if stage is not None and node_id is not None else {}
            here = [
                index
                for index in each_index(tasks.indices)
                if (task := live.get(index)) is not None and (task.attempt, task.node) == (tasks.attempt, node_id)
            ]
            found = Ranges.from_indices(here).flat() if check else tasks.indices
            return Source(user, found, settings.max_result_files, settings.max_result_bytes), found

        try:
            source, found = await control().find(node[0]).read(look)
        except (Refused, Unserved):
            raise Away("the partition is not served now") from None
        if not source.user:
            row = await asyncio.to_thread(history.job, node[0], tasks.job)
            source = source._replace(user="" if row is None or row.number != tasks.number else row.user)
        rest = difference(tasks.indices, found)
        if rest and source.user:
            past = Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, rest)
            ran = Ranges(await asyncio.to_thread(history.ran_on, node[0], node[1], past))
            ran.add(found)
            source = source._replace(indices=ran.flat())
        return source

    return source_of


async def _resume_copies(control: Control, partition: str, history: History, collector: Collector) -> None:
    """Copy the logs that an earlier leader did not copy, from nodes of pools that still exist."""

    def nodes_of_pools(state: Partition) -> list[str]:
        nodes = state.nodes
        return [nodes.name[row] for row in nodes.rows.values() if nodes.pool[row]]

    nodes = await control.find(partition).read(nodes_of_pools)
    for node, tasks in await asyncio.to_thread(history.not_copied, partition, nodes):
        collector.add((partition, node), tasks)


def _database_warnings(database: str) -> list[str]:
    from fairlead.journal.pgconnection import connect
    from fairlead.journal.pgsafety import warnings_of

    try:
        with connect(database, "check") as connection:
            return warnings_of(connection)
    except JournalError as problem:
        return [f"the settings of the database cannot be read: {problem}"]


async def _refresh(refreshers: Sequence[Callable[[], None]]) -> None:
    """Reload tokens, keys and secrets that other servers changed. Nothing changes while the database is away."""
    from fairlead.api.smallfile import FileProblem

    while True:
        await asyncio.sleep(REFRESH)
        for refresh in refreshers:
            with suppress(FileProblem):
                await asyncio.to_thread(refresh)


async def _sweep(outputs: OutputStore, history: History, oldest: Callable[[], int], log: FilteringBoundLogger) -> None:
    """Remove old output and old history, at the start and from time to time."""
    while True:
        try:
            await asyncio.to_thread(outputs.shrink)
        except OSError as problem:
            log.warning("old output not removed", problem=str(problem))
        try:
            dropped = await asyncio.to_thread(history.drop_before, oldest()) if oldest() > 0 else 0
            if dropped:
                log.info("old history removed", jobs=dropped)
        except JournalError as problem:
            log.warning("old history not removed", problem=str(problem))
        await asyncio.sleep(SWEEP)


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
        make()  # fail now if the options are wrong
    except Unusable as problem:
        raise Failed(str(problem)) from problem
    return make


async def _adapt(
    make: Callable[[], Runner] | None, control: Control, log: Callable[..., None], registry: CollectorRegistry
) -> None:
    """Schedule the pods of a Kubernetes cluster while this server leads their partition.

    If the adapter ends, it is started again.
    """
    while make is not None:
        while not _is_led(control):
            await asyncio.sleep(LED_PAUSE)
        runner = make()
        registry.register(runner.health)
        running = asyncio.create_task(runner.run())
        try:
            while _is_led(control) and not running.done():
                await asyncio.wait([running], timeout=LED_PAUSE)
            if running.done():
                running.result()
        except Exception as problem:
            log("adapter ended", problem=repr(problem))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            registry.unregister(runner.health)
        if running.cancelled():
            log("adapter stopped", reason="this server stands by")
            continue
        log("adapter ended", problem=repr(running.exception()))
        await asyncio.sleep(ADAPTER_PAUSE)


def _is_led(control: Control) -> bool:
    """True if this server leads the partition of the pods."""
    try:
        return control.named() in control.led()
    except Refused:
        return False


def documents_of(directory: Path, database: str, secrets_key: Path | None) -> Documents:
    """Return the documents of a server: files of its data directory, or rows of its database.

    In a database the server's own key is encrypted too, because copies of a database are easily passed on.
    """
    from fairlead.api.sealed import SealedFile, key_path
    from fairlead.api.smallfile import Document, SmallFile, StoredDocument

    if not database:
        return lambda name: SmallFile(directory / name)
    need_driver()
    from fairlead.journal.pgdocuments import PostgresDocuments

    rows, key = PostgresDocuments(database), key_path(directory, secrets_key)

    def named(name: str) -> Document:
        document = StoredDocument(rows, name)
        return SealedFile(document, key) if name == SERVER_KEY else document

    return named


def open_documents(directory: Path, database: str, secrets_key: Path | None) -> Documents:
    """Return `documents_of` for the command line: all problems are raised as `Failed`."""
    from fairlead.api.smallfile import FileProblem

    try:
        return documents_of(directory, database, secrets_key)
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem


def rotate_secrets_key(directory: Path, given: Path | None, database: str = "") -> Path:
    """Encrypt the secrets of a server with a new key, and return the key file. All servers must be stopped."""
    from fairlead.api.sealed import SealedFile, key_path
    from fairlead.api.smallfile import FileProblem

    documents = open_documents(directory, database, given)
    try:
        key = key_path(directory, given)
        sealed = documents(SERVER_KEY)
        others = [sealed] if isinstance(sealed, SealedFile) else []
        SealedFile(documents("secrets"), key).rotate(*others)
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
