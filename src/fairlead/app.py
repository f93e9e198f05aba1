"""Connects the concrete classes for the command line, which does not import them itself."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import msgspec

from fairlead import policies
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.core.ranges import Ranges
from fairlead.core.resources import MEMORY, SECOND, parse_duration, parse_quantity
from fairlead.journal.base import Journal, JournalError
from fairlead.journal.opening import is_url, need_driver, open_journal
from fairlead.journal.sql import SqliteJournal
from fairlead.journal.verify import Progress, StreamReport, verify
from fairlead.pools.settings import check_providers, parse_provider
from fairlead.views.config import config_view

if TYPE_CHECKING:
    import socket

    from structlog.typing import FilteringBoundLogger

    from fairlead.api.control import Control
    from fairlead.api.identities import Documents
    from fairlead.api.logfile import LogFile
    from fairlead.core.settings import PartitionConfig
    from fairlead.core.state import Partition
    from fairlead.engines.collecting import Collector
    from fairlead.history.outputs import OutputStore
    from fairlead.history.store import History
    from fairlead.pools.base import Log, PoolKind, Provider
    from fairlead.wire.agent import OutputPart, Tasks

REFRESH = 2.0
"""Seconds between two looks for changes of other servers."""
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
SERVER_KEY = "server-key"
FIRST_PAUSE = 0.1
SHORTEST_LEASE, LONGEST_LEASE = 1.0, 300.0
LogLevel = Literal["debug", "info", "warning", "error"]


class Failed(Exception):
    """An operation that failed. `field` is the field of a document, if the problem is in one."""

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
    """Return the place of a journal for messages, without passwords."""
    if not is_url(place):
        return place
    from fairlead.journal.pgconnection import shown_url

    return shown_url(place)


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
    """The URL for agents on this machine, and for other servers of the database."""
    database: str = ""
    """The address of a PostgreSQL database for all data that must not be lost. By default it is in the directory."""
    lease: str = "3s"
    """How long this server leads after its last renewal of a lease on PostgreSQL."""
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
    from fairlead.history.store import History, Used
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
        lease = parse_duration(settings.lease, "--lease") / SECOND
        if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            raise Refused("--lease", f"it is {settings.lease}; a lease has {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} s")
    log_file = LogFile(directory / "server.log", log_size)
    log = logger_to(log_file, "json", settings.log_level)
    metrics = Metrics()
    quotas = Quotas()
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

    def pool_log(level: str, event: str, fields: dict[str, Any]) -> None:
        (log.warning if level == "warning" else log.info)(event, **fields)

    def after_cycle(partition: str, seq: int) -> None:
        if partition not in snapshots:
            snapshots[partition] = Snapshots(settings.database or directory / "journal", partition, seq)
        snapshots[partition].poll(seq)

    try:
        wall = kept_wall(directory / "clock", lambda text: log.warning("clock leapt", problem=text))
        seconds = in_seconds(wall)
        secrets = Secrets(documents("secrets"), key_path(directory, settings.secrets_key), seconds)
        tokens = Tokens(documents("tokens"), seconds)
        identities = Identities(documents, tokens)
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

    server_id = token_hex(8)

    def opened() -> Journal:
        if settings.database:
            from fairlead.journal.postgresql import PostgresJournal

            return PostgresJournal(settings.database, server_id, settings.url, lease)
        need_room(directory)
        return SqliteJournal(directory / "journal")

    loop = asyncio.get_running_loop()
    shared = (tokens, identities, secrets)
    resuming: list[asyncio.Task[None]] = []

    def leads() -> None:
        """Read what other servers wrote. Logs that they have not copied are copied once requests are served."""
        for each in shared:
            each.refresh()
        if control.leader is not None:
            loop.call_soon_threadsafe(lambda: resuming.append(asyncio.create_task(_resume_later())))

    async def _resume_later() -> None:
        while control.problem:
            await asyncio.sleep(FIRST_PAUSE)
        await _resume_copies(control, history, collector)

    first = None if settings.config is None else _parsed(settings.config)
    control = Control(
        opened,
        hub,
        [metrics, Logs(log), HistoryRecorder(history), quotas],
        first,
        after_cycle,
        lambda text: log.error("control plane", problem=text),
        pools,
        wall,
        leads=leads,
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
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem
    resumed.set()
    http = server(application(site), settings.certificate, settings.key)
    serving = asyncio.create_task(http.serve(sockets=[listening]))
    sweeping = asyncio.create_task(_sweep(outputs))
    refreshing = asyncio.create_task(_refresh([each.refresh for each in shared])) if settings.database else None
    try:
        spare_the_collector()
        warning = ""
        if settings.config_file and control.leader is None and control.configured[1] != first:
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
        http.should_exit = True
        await serving
        await control.close()
        sweeping.cancel()
        for task in (*resuming, *([refreshing] if refreshing else [])):
            task.cancel()
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


def _database_warnings(database: str) -> list[str]:
    from fairlead.journal.pgconnection import connect
    from fairlead.journal.pgsafety import warnings_of

    try:
        with connect(database, "check") as connection:
            return warnings_of(connection)
    except JournalError as problem:
        return [f"the settings of the database cannot be read: {problem}"]


async def _refresh(refreshers: Sequence[Callable[[], None]]) -> None:
    """Follow changes of tokens, keys and secrets by other servers. While the database is away nothing changes."""
    from fairlead.api.smallfile import FileProblem

    while True:
        await asyncio.sleep(REFRESH)
        for refresh in refreshers:
            with suppress(FileProblem):
                await asyncio.to_thread(refresh)


async def _sweep(outputs: OutputStore) -> None:
    """Remove old copies of logs from time to time."""
    while True:
        await asyncio.sleep(SWEEP)
        await asyncio.to_thread(outputs.shrink)


def documents_of(directory: Path, database: str, secrets_key: Path | None) -> Documents:
    """Return the documents of a server: files of its data directory, or rows of its database.

    In a database the server's own key is encrypted too, because a copy of the database is easily passed on.
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
    """Do the same for the command line, with `Failed` for all problems."""
    from fairlead.api.smallfile import FileProblem

    try:
        return documents_of(directory, database, secrets_key)
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem


def copy_data(source: str, target: str, secrets_key: Path | None, told: Callable[[str, int], None]) -> Path:
    """Copy all data of a server to an empty place, compare them, and return the key file of both.

    `told` is called with the name and the number of rows of each part.
    """
    from fairlead.api.datafolder import prepare
    from fairlead.api.sealed import key_path
    from fairlead.api.smallfile import FileProblem
    from fairlead.history.copying import copy_history
    from fairlead.journal.copying import copy_journal

    folders = [Path(place).absolute() for place in (source, target) if not is_url(place)]
    if not is_url(source) and not (Path(source) / "journal").exists():
        raise Failed(f"{source}: no data of a server; name a data directory or a database")
    if secrets_key is None and not folders:
        raise Failed("--secrets-key: name the key file of the secrets, because both places are databases")
    with ExitStack() as stack:
        try:
            if not is_url(target):
                prepare(Path(target).absolute())
            for folder in folders:
                stack.enter_context(_unused(folder))
            key = key_path(folders[0], secrets_key) if folders else cast(Path, secrets_key)
            old = stack.enter_context(open_journal(_journal_at(source), read_only=True))
            new = stack.enter_context(open_journal(_journal_at(target)))
            if old.held_by():
                raise Failed(f"{old.path}: the server {old.held_by()} runs on it; stop all its servers first")
            if new.reigned():
                raise Failed(f"{new.path}: there is a journal already; name an empty place")
            _copy_documents(source, target, key, told)
            copy_history(_history_at(source), _history_at(target), told)
            copy_journal(old, new, told)
        except (JournalError, FileProblem) as problem:
            raise Failed(str(problem)) from problem
    return key


def _copy_documents(source: str, target: str, key: Path, told: Callable[[str, int], None]) -> None:
    old = documents_of(Path(source).absolute(), source if is_url(source) else "", key)
    new = documents_of(Path(target).absolute(), target if is_url(target) else "", key)
    for name in (SERVER_KEY, "tokens", "nodes", "secrets"):
        content = old(name).read()
        document = new(name)
        if document.read() is not None:
            raise Failed(f"{document.name}: it exists already; name an empty place")
        if content is not None:
            document.write(content)
            if new(name).read() != content:
                raise Failed(f"{document.name}: it is not equal to its original; remove the copy")
        told(name, int(content is not None))


def _journal_at(place: str) -> str:
    return place if is_url(place) else str(Path(place).absolute() / "journal")


def _history_at(place: str) -> str:
    return place if is_url(place) else str(Path(place).absolute() / "history")


@contextmanager
def _unused(folder: Path) -> Iterator[None]:
    """Lock a data directory. Raise `Failed` if a server runs on it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Failed(f"a server runs on {folder}; stop it with `fairlead down`") from None
    finally:
        os.close(lock)


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
