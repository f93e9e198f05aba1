"""The tables of the history on SQLite."""

from __future__ import annotations

import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    partition TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
    queue TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, submitted INTEGER NOT NULL,
    ended INTEGER NOT NULL, tasks TEXT NOT NULL, labels TEXT NOT NULL DEFAULT '{}',
    spec TEXT NOT NULL DEFAULT '', PRIMARY KEY (partition, number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_by_id ON jobs (partition, id, number);
CREATE INDEX IF NOT EXISTS jobs_by_end ON jobs (ended, partition, number);
CREATE TABLE IF NOT EXISTS attempts (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, indices TEXT NOT NULL,
    attempt INTEGER NOT NULL, outcome TEXT NOT NULL, node TEXT NOT NULL, exit_code INTEGER, reason TEXT NOT NULL,
    started INTEGER, ended INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    job TEXT NOT NULL DEFAULT '', user TEXT NOT NULL DEFAULT '', queue TEXT NOT NULL DEFAULT '',
    amounts TEXT NOT NULL DEFAULT '[]', submitted INTEGER NOT NULL DEFAULT 0, tasks INTEGER NOT NULL DEFAULT 0,
    ran INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS used (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, place INTEGER NOT NULL,
    attempt INTEGER NOT NULL, signal INTEGER NOT NULL, ran INTEGER NOT NULL, cpu INTEGER NOT NULL,
    memory INTEGER NOT NULL, PRIMARY KEY (partition, number, stage, place, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS copied (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, attempt INTEGER NOT NULL,
    indices TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (partition, number, stage, attempt, indices)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, place INTEGER NOT NULL,
    attempt INTEGER NOT NULL, files TEXT NOT NULL, warning TEXT NOT NULL,
    PRIMARY KEY (partition, number, stage, place, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reached (partition TEXT PRIMARY KEY NOT NULL, seq INTEGER NOT NULL) WITHOUT ROWID;
"""
ONCE = """
DELETE FROM attempts WHERE rowid NOT IN (
    SELECT min(rowid) FROM attempts GROUP BY partition, number, stage, first, attempt);
CREATE UNIQUE INDEX attempts_once ON attempts (partition, number, stage, first, attempt);
DROP INDEX IF EXISTS attempts_by_job;
"""
"""Removes the duplicates of earlier versions, and prevents new ones."""
ADDED = {
    "jobs": {"labels": "TEXT NOT NULL DEFAULT '{}'", "spec": "TEXT NOT NULL DEFAULT ''"},
    "attempts": {
        **dict.fromkeys(("job", "user", "queue"), "TEXT NOT NULL DEFAULT ''"),
        "amounts": "TEXT NOT NULL DEFAULT '[]'",
        **dict.fromkeys(("submitted", "tasks", "ran"), "INTEGER NOT NULL DEFAULT 0"),
    },
}
"""Columns that files of earlier versions lack. Attempts of such a file get 0 `tasks`, and reports leave them out."""


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables that are missing, and add the columns that a file of an earlier version lacks."""
    db.executescript(SCHEMA)
    for table, columns in ADDED.items():
        present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        for name, form in columns.items():
            if name not in present:
                db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {form}")
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts_once'").fetchall():
        db.executescript(ONCE)
