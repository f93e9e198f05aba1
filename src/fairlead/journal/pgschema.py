"""The tables on PostgreSQL, in versions. A newer program brings an older database to its version, in one transaction.

`MIGRATIONS` has one script per version; a script that was released is never changed.
"""

from __future__ import annotations

from fairlead.journal.base import JournalError, TooNew
from fairlead.journal.pgconnection import SCHEMA, Connection, writing

MIGRATION_LOCK = 0x464C4A31
"""The key of the advisory lock under which tables are created. It is held for one transaction."""

# `reigns`: the lease and the end of each stream. Each append updates its row: the row is small, and pages have room, so
# that an update touches no index.
# `holder`: the server that leads; `session`: its connection, which fences statements of earlier ones.
# `payload` is not compressed: records are small, and dumps of a state are written rarely.
_JOURNAL = """
CREATE TABLE reigns (
    stream text PRIMARY KEY, epoch bigint NOT NULL, born bigint NOT NULL, base bigint NOT NULL,
    base_digest bytea NOT NULL, seal bytea NOT NULL, seq bigint NOT NULL, digest bytea NOT NULL,
    holder text NOT NULL, session text NOT NULL, address text NOT NULL, expires timestamptz NOT NULL
) WITH (fillfactor = 20);
CREATE TABLE records (
    stream text NOT NULL, seq bigint NOT NULL, epoch bigint NOT NULL, digest bytea NOT NULL, payload bytea NOT NULL,
    PRIMARY KEY (stream, seq)
);
ALTER TABLE records ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE snapshots (
    stream text NOT NULL, seq bigint NOT NULL, born bigint NOT NULL, chain bytea NOT NULL, digest bytea NOT NULL,
    payload bytea NOT NULL, PRIMARY KEY (stream, seq)
);
"""
MIGRATIONS: tuple[str, ...] = (_JOURNAL,)


def prepare(connection: Connection, where: str, read_only: bool = False) -> None:
    """Create the tables, or bring them to this program's version. Raise `TooNew` if they are of a newer one."""
    version = _version(connection)
    if version == len(MIGRATIONS):
        return
    if version > len(MIGRATIONS):
        raise TooNew(f"{where}: schema {version} is newer than this program's {len(MIGRATIONS)}; upgrade Fairlead")
    if read_only:
        if not version:
            raise JournalError(f"{where}: no journal yet; check the address")
        raise JournalError(
            f"{where}: schema {version} is older than this program's {len(MIGRATIONS)}; a server of this version "
            "upgrades it at its start"
        )
    with writing(connection, where, "creating the tables"):
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        version = _version(connection)  # another server may have been first
        if not version:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
            connection.execute("INSERT INTO schema_version VALUES (0)")
        for script in MIGRATIONS[version:]:
            connection.execute(script.encode())
        connection.execute("UPDATE schema_version SET version = %s", (max(version, len(MIGRATIONS)),))


def _version(connection: Connection) -> int:
    """Return the version of the tables; 0 if there are none."""
    # A query, not `to_regclass`: that may answer from a cache of before another session created the tables.
    found = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema_version'", (SCHEMA,)
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return 0 if row is None else int(row[0])
