"""Warns if the settings of a PostgreSQL database allow that confirmed data are lost when a machine fails."""

from __future__ import annotations

from fairlead.journal.pgconnection import Connection

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
