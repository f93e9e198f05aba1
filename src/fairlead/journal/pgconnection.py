"""Connections to PostgreSQL: addresses, settings of a session, and errors with a remedy.

This module needs psycopg, which only installations with PostgreSQL have; `locate` imports it on demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from fairlead.journal.journal import JournalError, Locked, NotWritten, UnknownOutcome
from fairlead.journal.pgprimary import Primaries

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST = 15
"""The oldest supported version of PostgreSQL."""
SCHEMA = "fairlead"
"""The schema with all tables."""
CHANNEL = "fairlead"
"""The channel on which servers wake each other up."""
LOCK_SECONDS = 10
"""Seconds that a statement waits for a lock. A COMMIT has no limit."""
CONNECT_SECONDS = 5
PRIMARIES = Primaries()
DEAD_AFTER = 5_000
"""Milliseconds without a confirmation from the database after which a connection is closed."""


def shown_url(url: str) -> str:
    """Return the address of a database without passwords, for messages."""
    parts = _parts(url)
    if parts is None:
        return "postgresql://…"
    name = f"/{parts['dbname']}" if parts.get("dbname") else ""
    ports = str(parts.get("port", "")).split(",")
    hosts = str(parts.get("host", "")).split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    return f"postgresql://{','.join(places)}{name}"


def _parts(url: str) -> dict[str, Any] | None:
    """Return the parts of an address; None if it is malformed, also if a part of a password is taken for another."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return None
    host, port, name = (str(parts.get(key) or "") for key in ("host", "port", "dbname"))
    return None if "@" in host + name or port.strip("0123456789,") else parts


def connect(url: str, purpose: str, read_only: bool = False) -> Connection:
    """Return a connection in autocommit mode, with Fairlead's schema. The list of sessions shows its `purpose`."""
    parts = _parts(url)
    if parts is None:
        # What is wrong is not quoted, because it may be a part of the password.
        raise JournalError(
            "--database: not an address of PostgreSQL; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with "
            "%40 for @, %2F for /, %3A for : and %25 for % in the password"
        )
    settings: dict[str, Any] = {
        "application_name": f"fairlead {purpose}",
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": DEAD_AFTER,
        # Never read from a replica, which may lack the newest records.
        "target_session_attrs": "read-write",
    }
    settings = {name: value for name, value in settings.items() if name not in parts}

    def open_at(host: Mapping[str, str]) -> Connection:
        return psycopg.connect(url, autocommit=True, prepare_threshold=2, **{**settings, **host})

    try:
        connection = PRIMARIES.connect(url, _hosts(parts), open_at)
    except psycopg.Error as problem:
        raise JournalError(
            f"{shown_url(url)}: cannot connect ({_text(problem)}); check the address, that the database runs and "
            "accepts writes, and the rights of the user"
        ) from problem
    try:
        version = connection.info.server_version // 10_000
        if version < OLDEST:
            raise JournalError(f"{shown_url(url)}: PostgreSQL {version} is too old; use {OLDEST} or newer")
        connection.execute(f"SET search_path = {SCHEMA}")
        connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET idle_in_transaction_session_timeout = '60s'")
        if read_only:
            connection.execute("SET default_transaction_read_only = on")
    except psycopg.Error as problem:
        connection.close()
        raise JournalError(f"{shown_url(url)}: {_text(problem)}") from problem
    except JournalError:
        connection.close()
        raise
    return connection


def _hosts(parts: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the settings that name each single host of an address."""
    named = {name: str(parts[name]).split(",") for name in ("host", "hostaddr", "port") if parts.get(name)}
    places = max((len(named[name]) for name in ("host", "hostaddr") if name in named), default=1)
    if places == 1:
        return [{}]
    if any(len(values) not in (1, places) for values in named.values()):
        return [{}]  # the driver says what is wrong
    return [{name: values[at if len(values) > 1 else 0] for name, values in named.items()} for at in range(places)]


@lru_cache(1000)
def with_placeholders(sql: str) -> bytes:
    """Return a statement with psycopg's placeholders for values instead of `?` and `:name`."""
    return re.sub(r":(\w+)", r"%(\1)s", sql.replace("%", "%%").replace("?", "%s")).encode()


def is_broken(connection: Connection) -> bool:
    """True if a connection was lost, so that the outcome of its last statement is unknown."""
    return connection.closed or connection.info.status != pq.ConnStatus.OK


@contextmanager
def reading(connection: Connection, where: str, doing: str) -> Iterator[None]:
    """Run a block in one read transaction, so that all its reads see the same state of the database."""
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield
    except psycopg.Error as problem:
        raise explained(problem, where, doing) from problem


@contextmanager
def writing(connection: Connection, where: str, doing: str) -> Iterator[None]:
    """Run a block in one durable write transaction. If this raises `NotWritten`, nothing was written."""
    committing = False
    try:
        with connection.transaction():
            yield
            committing = True
    except psycopg.Error as problem:
        if committing and is_broken(connection):
            raise UnknownOutcome(
                f"{where}: {doing}: the connection was lost during the commit ({_text(problem)}); "
                "connect again and read what was written"
            ) from problem
        raise refused(problem, where, doing) from problem


def explained(problem: Exception, where: str, doing: str) -> JournalError:
    """Return the error for a failed read."""
    return JournalError(f"{where}: {doing}: {_text(problem)}")


def refused(problem: Exception, where: str, doing: str) -> NotWritten:
    """Return the error for a write that certainly failed, with a remedy."""
    what = f"{where}: {doing}: {_text(problem)}; nothing was written"
    if isinstance(problem, psycopg.errors.LockNotAvailable):
        return Locked(f"{what}, another session holds the lock, find and end that one or try again")
    if isinstance(problem, psycopg.errors.DiskFull):
        return NotWritten(f"{what}, make room on the disk of the database")
    if isinstance(problem, psycopg.errors.ReadOnlySqlTransaction):
        return NotWritten(f"{what}, the database has become a standby: name the primary too in the address")
    return NotWritten(what)


def _text(problem: Exception) -> str:
    return " ".join(str(problem).split()) or repr(problem)


SETTINGS = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")


def warnings_of(connection: Connection) -> list[str]:
    """Return a warning with a remedy for each setting that allows a loss of data."""
    rows = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(SETTINGS),))
    setting: dict[str, str] = dict(rows.fetchall())
    warnings: list[str] = []
    for name in ("fsync", "full_page_writes"):
        if setting[name] == "off":
            warnings.append(f"{name} is off: the database may be damaged when its machine goes down; turn it on")
    level = setting["synchronous_commit"]
    if level in ("off", "local", "remote_write"):
        warnings.append(
            f"synchronous_commit is {level}: requests that were answered may be lost; set it to on for this database"
        )
    if not setting["synchronous_standby_names"]:
        warnings.append(
            "synchronous_standby_names is empty: if the machine of the database is lost, the newest requests that were "
            "answered are lost; name two standbys or more, such as ANY 1 (one, two)"
        )
    return warnings
