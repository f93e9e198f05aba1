"""The options with which a server starts, and the sizes and durations in them."""

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
    """The URL of this server, for agents on this machine and for the other servers of the database."""
    database: str = ""
    """The address of a PostgreSQL database with the data. By default they are in the data directory."""
    lease: str = "3s"
    """How long a lease on PostgreSQL lasts after each renewal."""
    config: object = None
    """The configuration of a new journal, as a document."""
    config_file: str = ""
    """The file that `config` was read from."""
    secrets_key: Path | None = None
    """The key file of the secrets; see `key_path` for the default."""
    certificate: Path | None = None
    key: Path | None = None
    version: str = ""
    log_size: str
    log_level: LogLevel = "info"
    history_size: str
    history_age: str = ""
    """The age at which jobs are removed from the history. By default only its size is limited."""
    journal_age: str = "1h"
    """How long records are kept, so that backups can be restored to a moment in this time."""
    outputs: str = ""
    """Where the output of tasks is stored: s3://BUCKET/PREFIX, or a folder, by default in the data directory."""
    outputs_endpoint: str = ""
    """The address of the object store. The default is that of AWS."""
    outputs_size: str
    outputs_age: str
    notify_allow: tuple[str, ...] = ()
    """Networks and host names in the network of the server to which webhooks may be sent."""
    mail_domains: tuple[str, ...] = ()
    """Domains to which mail may be sent; empty for all."""
    sendmail: str = "/usr/sbin/sendmail"
    """The program that sends mail."""
    traces: str = ""
    """The address of an OpenTelemetry collector for spans of jobs; empty for none."""
    kubernetes: tuple[str, Path | None, str] = ("", None, "")
    """For scheduling pods: the kubeconfig file of the cluster, the file of rules, and the name of the lease."""


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
    """Parse the sizes and durations of options. Raise `Failed`, with the name of the option, if one is wrong."""
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
