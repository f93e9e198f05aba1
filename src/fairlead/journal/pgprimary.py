"""Finds the primary among the hosts of an address, also while a former primary runs beside its successor.

A primary that stopped and came back accepts writes, but its commits wait for ever for standbys that follow another one.
PostgreSQL counts promotions in its timeline, so the primary with the highest timeline is the right one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]
Open = Callable[[Mapping[str, str]], Connection]
"""Connects to one of the hosts."""

OTHERS = 0.5
"""Seconds to wait for the other hosts when one has answered."""
_TIMELINE = (
    "SELECT system_identifier::text, CASE WHEN pg_is_in_recovery() THEN NULL "
    "ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END FROM pg_control_system()"
)


class Superseded(psycopg.OperationalError):
    """A host accepts writes, although another one took its place."""


class Primaries:
    """The primaries that this process has used. Several threads may use it."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        """Address and system → the highest timeline that was seen."""
        self._lock = threading.Lock()

    def connect(self, address: str, hosts: list[Mapping[str, str]], connect: Open) -> Connection:
        """Return a connection to the host with the highest timeline, if that is at least the highest seen so far."""
        found, problems = _all(hosts, connect)
        best = max(found, key=lambda connection: _timeline(connection)[1], default=None)
        for other in found:
            if other is not best:
                other.close()
        if best is None:
            raise problems[0]
        return self._checked(address, best)

    def _checked(self, address: str, connection: Connection) -> Connection:
        system, timeline = _timeline(connection)
        with self._lock:
            newest = self._newest.get((address, system), 0)
            self._newest[address, system] = max(newest, timeline)
        if 0 < timeline < newest:
            connection.close()
            raise Superseded(
                f"the primary of timeline {timeline} was replaced by one of timeline {newest}; stop it, and let it "
                "follow its successor"
            )
        return connection


def _timeline(connection: Connection) -> tuple[str, int]:
    """Return the id of the database system and its timeline; 0 for a standby."""
    [(system, timeline)] = connection.execute(_TIMELINE).fetchall()
    return system, timeline or 0


def _all(hosts: list[Mapping[str, str]], connect: Open) -> tuple[list[Connection], list[psycopg.Error]]:
    """Connect to all hosts at once. Return the connections, and the problems of other hosts."""
    if len(hosts) == 1:
        return [connect(hosts[0])], []
    answers: SimpleQueue[Connection | psycopg.Error] = SimpleQueue()
    lock, over = threading.Lock(), False

    def ask(host: Mapping[str, str]) -> None:
        try:
            answer: Connection | psycopg.Error = connect(host)
        except psycopg.Error as problem:
            answer = problem
        with lock:
            if not over:
                answers.put(answer)
            elif isinstance(answer, psycopg.Connection):
                answer.close()

    for host in hosts:
        threading.Thread(target=ask, args=(host,), daemon=True).start()
    found: list[Connection] = []
    problems: list[psycopg.Error] = []
    until: float | None = None
    while len(found) + len(problems) < len(hosts):
        try:
            answer = answers.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            break
        if isinstance(answer, psycopg.Error):
            problems.append(answer)
        else:
            found.append(answer)
            until = until or time.monotonic() + OTHERS
    with lock:
        over = True
    while not answers.empty():
        answer = answers.get()
        if isinstance(answer, psycopg.Connection):
            found.append(answer)
    return found, problems
