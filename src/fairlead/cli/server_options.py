"""The options of `fairlead up` and `fairlead server`, and the lock of the data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import LogLevelOption, Output
from fairlead.cli.output import fail
from fairlead.cli.typer_commands import Options, option

PORT = 7070

Data = Annotated[
    Path | None, typer.Option("--data", help="Data directory. By default FAIRLEAD_DATA, else ~/.local/share/fairlead.")
]
Database = Annotated[
    str,
    typer.Option(
        help="Keep the data in this PostgreSQL database, such as postgresql://host/fairlead, instead of the data "
        "directory. Several servers may share it: the partitions are spread over them, and if a server fails, the "
        "others take over its partitions.",
        envvar="FAIRLEAD_DATABASE",
        metavar="URL",
        show_envvar=True,
    ),
]
SecretsKey = Annotated[
    Path | None,
    typer.Option(
        help="File with the key that encrypts secrets. By default a credential that systemd passes, else a file "
        "beside the data directory."
    ),
]


class ServerOptions(Output):
    """The options that `up` and `server` share."""

    data: Data = None
    port: int = option("Port to listen on; 0 for any free port.", default=PORT, min=0, max=65_535)
    config: Path | None = option(
        "Configuration file for the first start. Later starts use the configuration in the data directory, which "
        "`fairlead config apply` changes."
    )
    secrets_key: SecretsKey = None
    log_size: str = option("Largest size of the server's log; the oldest lines are dropped.", default="160Mi")
    log_level: LogLevelOption = "info"
    history_size: str = option(
        "Largest size of the history of finished jobs; the oldest jobs are dropped.", default="4Gi"
    )
    history_age: str = option(
        "Drop jobs from the history at this age, such as 365d. By default only --history-size limits it."
    )
    journal_age: str = option(
        "Keep records in the journal for this long. A backup can be restored to any moment of that time.", default="1h"
    )
    outputs: str = option(
        "Where to keep result files of tasks, and logs from nodes of pools, which are copied before such a node is "
        "removed: a folder, or an object store as s3://BUCKET/PREFIX. By default a folder in the data directory.",
        metavar="PLACE",
    )
    outputs_endpoint: str = option("With --outputs s3://…: address of the object store. By default AWS.", metavar="URL")
    outputs_size: str = option("Largest size of all output in --outputs; the oldest is dropped.", default="16Gi")
    outputs_age: str = option("Age at which output in --outputs is dropped.", default="30d")
    notify_allow: list[str] | None = option(
        "Networks, such as 10.0.0.0/8, and host names to which jobs may send webhooks. Without it, webhooks go only to "
        "public addresses; may be repeated.",
        metavar="NETWORK",
    )
    mail_domain: list[str] | None = option(
        "Domain to which jobs may send mail, such as example.org. Without it, to all; may be repeated.",
        metavar="DOMAIN",
    )
    sendmail: str = option("Program that sends the mail of `--notify mailto:…`.", default="/usr/sbin/sendmail")
    traces: str = option(
        "Send a trace of each job to this OpenTelemetry collector (OTLP over HTTP), such as "
        "http://127.0.0.1:4318/v1/traces. Needs the extra: pip install 'fairlead\\[otel]'.",
        metavar="URL",
    )


class NetworkOptions(Options):
    """The options that only `server` has: its address, TLS, a database and Kubernetes."""

    host: str = option(
        "Address to listen on. If other machines can reach it, --certificate and --key are needed.", default="127.0.0.1"
    )
    certificate: Path | None = option("PEM file with the certificate for TLS.")
    key: Path | None = option("PEM file with the private key of --certificate.")
    database: Database = ""
    lease: str = option(
        "With --database: how long a server may be silent before the others take over its partitions.", default="3s"
    )
    advertise: str = option(
        "With --database: URL at which agents, users and other servers reach this server. By default it is made from "
        "--host and --port.",
        metavar="URL",
    )
    kubernetes: str = option(
        "Also schedule the pods of a Kubernetes cluster, as `fairlead kubernetes` does: its kubeconfig file, or `pod` "
        "for the cluster that this server runs in.",
        metavar="FILE",
    )
    kubernetes_rules: Path | None = option("Rules file for pods, as in `fairlead kubernetes --rules`.")
    kubernetes_lease: str = option("Lease for leader election, as in `fairlead kubernetes --lease`.")


def check_database(database: str) -> None:
    """Exit if the text is not the address of a database."""
    if database and not database.startswith(("postgresql://", "postgres://")):
        fail("--database: this is not the address of a database, such as postgresql://host/fairlead", code=2)


def directory_of(data: Path | None) -> Path:
    """Return the named data directory, or the default one."""
    from fairlead.client.endpoint import data_directory

    return (data or data_directory()).absolute()


def lock(directory: Path) -> int | None:
    """Lock a data directory and return the open file; None if a server has it locked."""
    held = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def is_locked(directory: Path) -> bool:
    """True if a server has the data directory locked."""
    held = lock(directory) if directory.exists() else -1
    if held is None:
        return True
    if held >= 0:
        os.close(held)
    return False
