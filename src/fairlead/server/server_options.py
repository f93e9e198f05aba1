"""The options of a server, and the sizes and durations in them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.resources import MEMORY, SECOND, parse_duration, parse_quantity
from fairlead.server.failure import refusals_as_failed

SHORTEST_LEASE, LONGEST_LEASE = 1.0, 300.0
LogLevel = Literal["debug", "info", "warning", "error"]


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a server, as the command line gives them."""

    directory: Path
    url: str
    """The URL for agents on this machine, and for other servers on the database."""
    database: str = ""
    """The address of a PostgreSQL database for all data that must not be lost. The default is the data directory."""
    lease: str = "3s"
    """How long this server leads after it last renewed a lease on PostgreSQL."""
    config: object = None
    """The configuration document for a new journal."""
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


class Limits(NamedTuple):
    """The sizes, in bytes, and the durations of a server's options."""

    log_size: int
    history_size: int
    history_age: Micros
    """0 if only the size is limited."""
    journal_age: int
    """In seconds."""
    outputs_size: int
    outputs_age: float
    """In seconds."""
    lease: float
    """In seconds."""


def limits_of(options: ServerOptions) -> Limits:
    """Parse the sizes and durations of a server's options. Raises `Failed` with the name of the option."""
    with refusals_as_failed():
        limits = Limits(
            log_size=parse_quantity(MEMORY, options.log_size, "--log-size"),
            history_size=parse_quantity(MEMORY, options.history_size, "--history-size"),
            history_age=parse_duration(options.history_age, "--history-age") if options.history_age else 0,
            journal_age=parse_duration(options.journal_age, "--journal-age") // SECOND,
            outputs_size=parse_quantity(MEMORY, options.outputs_size, "--outputs-size"),
            outputs_age=parse_duration(options.outputs_age, "--outputs-age") / SECOND,
            lease=parse_duration(options.lease, "--lease") / SECOND,
        )
        if not SHORTEST_LEASE <= limits.lease <= LONGEST_LEASE:
            raise Refused("--lease", f"it is {options.lease}; a lease has {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} s")
    return limits
