"""The tables on PostgreSQL, by version. A newer program upgrades an older database in one transaction.

`MIGRATIONS` has one script per version; a released script is never changed.
"""

from __future__ import annotations

from fairlead.journal.journal import JournalError, TooNew
from fairlead.journal.pgconnection import SCHEMA, Connection, writing

MIGRATION_LOCK = 0x464C4A31
"""The key of the advisory lock that a transaction holds while it creates tables."""

# `reigns`: the lease and the last record of each stream. Each append updates its row. The row is small and its page has
# free space, so that an update touches no index.
# `holder`: the leading server; `session`: its connection, so that statements of its lost connections are refused.
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
# The tables of the history are those on SQLite; `rowid` is the order in which rows were written.
# Indexes contain the digest of `indices`, which may be a long text.
_HISTORY = """
CREATE TABLE jobs (
    partition text NOT NULL, number bigint NOT NULL, id text NOT NULL, name text NOT NULL, "user" text NOT NULL,
    queue text NOT NULL, state text NOT NULL, reason text NOT NULL, submitted bigint NOT NULL, ended bigint NOT NULL,
    tasks text NOT NULL, labels text NOT NULL DEFAULT '{}', PRIMARY KEY (partition, number)
);
CREATE INDEX jobs_by_id ON jobs (partition, id, number);
CREATE INDEX jobs_by_end ON jobs (ended, partition, number);
CREATE TABLE attempts (
    rowid bigint GENERATED ALWAYS AS IDENTITY,
    partition text NOT NULL, number bigint NOT NULL, stage text NOT NULL, indices text NOT NULL,
    attempt bigint NOT NULL, outcome text NOT NULL, node text NOT NULL, exit_code bigint, reason text NOT NULL,
    started bigint, ended bigint NOT NULL, first bigint NOT NULL, last bigint NOT NULL, job text NOT NULL DEFAULT '',
    "user" text NOT NULL DEFAULT '', queue text NOT NULL DEFAULT '', amounts text NOT NULL DEFAULT '[]',
    submitted bigint NOT NULL DEFAULT 0, tasks bigint NOT NULL DEFAULT 0
);
CREATE INDEX attempts_by_job ON attempts (partition, number, stage, first);
CREATE INDEX attempts_in_order ON attempts (partition, rowid);
CREATE UNIQUE INDEX attempts_once ON attempts (partition, number, stage, attempt, ended, md5(indices));
CREATE TABLE used (
    partition text NOT NULL, number bigint NOT NULL, stage text NOT NULL, place bigint NOT NULL,
    attempt bigint NOT NULL, signal bigint NOT NULL, ran bigint NOT NULL, cpu bigint NOT NULL, memory bigint NOT NULL,
    PRIMARY KEY (partition, number, stage, place, attempt)
);
CREATE TABLE copied (
    partition text NOT NULL, number bigint NOT NULL, stage text NOT NULL, attempt bigint NOT NULL,
    indices text NOT NULL, node text NOT NULL
);
CREATE UNIQUE INDEX copied_once ON copied (partition, number, stage, attempt, md5(indices));
CREATE TABLE results (
    partition text NOT NULL, number bigint NOT NULL, stage text NOT NULL, place bigint NOT NULL,
    attempt bigint NOT NULL, files text NOT NULL, warning text NOT NULL,
    PRIMARY KEY (partition, number, stage, place, attempt)
);
CREATE FUNCTION holds(indices text, place bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT count(*) % 2 = 1 FROM json_array_elements_text(CAST(indices AS json)) AS bound
    WHERE CAST(bound AS bigint) <= place
$$;
"""
_DOCUMENTS = """
CREATE TABLE documents (name text PRIMARY KEY, version bigint NOT NULL, content bytea NOT NULL);
"""
_SPECIFICATIONS = "ALTER TABLE jobs ADD COLUMN spec text NOT NULL DEFAULT '';"
# The database system and timeline of the last reign. They change with a promotion, which may lose records.
_ORIGIN = "ALTER TABLE reigns ADD COLUMN origin text NOT NULL DEFAULT '';"
# `servers`: the servers that are up. Each row is renewed a few times per second, so its page has free space.
# `version`: the configuration that a server knows; `takes`: if it can lead; `draining`: if an operator drains it.
_SERVERS = """
CREATE TABLE servers (
    id text PRIMARY KEY, address text NOT NULL, version bigint NOT NULL, takes boolean NOT NULL,
    draining boolean NOT NULL, expires timestamptz NOT NULL
) WITH (fillfactor = 20);
"""
# `reached`: the record up to which the history of a partition is complete.
# A task has an attempt once, so no two rows of an attempt have the same first task.
_REACHED = """
CREATE TABLE reached (partition text PRIMARY KEY, seq bigint NOT NULL);
ALTER TABLE attempts ADD COLUMN ran bigint NOT NULL DEFAULT 0;
DELETE FROM attempts AS a USING attempts AS b WHERE a.rowid > b.rowid AND a.partition = b.partition
    AND a.number = b.number AND a.stage = b.stage AND a.first = b.first AND a.attempt = b.attempt;
DROP INDEX attempts_once;
DROP INDEX attempts_by_job;
CREATE UNIQUE INDEX attempts_once ON attempts (partition, number, stage, first, attempt);
"""
# Seconds that a lease or the row of a server lasts after a renewal; 0 in rows of earlier versions.
_LASTS = """
ALTER TABLE reigns ADD COLUMN lasts double precision NOT NULL DEFAULT 0;
ALTER TABLE servers ADD COLUMN lasts double precision NOT NULL DEFAULT 0;
"""
# The version of the program of a server.
_PROGRAM = "ALTER TABLE servers ADD COLUMN program text NOT NULL DEFAULT '';"
# `notify`: where the end of a job is to be told; `told`: 1 if that is done, or was given up.
_NOTIFY = """
ALTER TABLE jobs ADD COLUMN notify text NOT NULL DEFAULT '[]';
ALTER TABLE jobs ADD COLUMN told bigint NOT NULL DEFAULT 0;
CREATE INDEX jobs_untold ON jobs (partition, number) WHERE told = 0 AND notify <> '[]';
"""
# `promised`: the first and the last start that was foretold for a job, and what came of it.
_PROMISED = """
CREATE TABLE promised (
    partition text NOT NULL, number bigint NOT NULL, last bigint NOT NULL, made bigint NOT NULL,
    likely bigint NOT NULL, earliest bigint NOT NULL, latest bigint, stretch double precision NOT NULL,
    what text NOT NULL DEFAULT '', decided bigint NOT NULL DEFAULT 0, PRIMARY KEY (partition, number, last)
);
CREATE INDEX promised_by_time ON promised (partition, last, decided);
"""
MIGRATIONS: tuple[str, ...] = (
    _JOURNAL + _HISTORY + _DOCUMENTS,
    _SPECIFICATIONS,
    _ORIGIN,
    _SERVERS,
    _REACHED,
    _LASTS,
    _PROGRAM,
    _NOTIFY,
    _PROMISED,
)


def prepare(connection: Connection, where: str, read_only: bool = False) -> None:
    """Create the tables, or upgrade them to this program's version. Raises `TooNew` if their version is newer."""
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
        version = _version(connection)  # another server may have done it first
        if not version:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
            connection.execute("INSERT INTO schema_version VALUES (0)")
        for script in MIGRATIONS[version:]:
            connection.execute(script.encode())
        connection.execute("UPDATE schema_version SET version = %s", (max(version, len(MIGRATIONS)),))


def _version(connection: Connection) -> int:
    """Return the version of the tables; 0 if there are none."""
    # A query, not `to_regclass`, which may answer from a cache from before another session created the tables.
    found = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema_version'", (SCHEMA,)
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return 0 if row is None else int(row[0])
