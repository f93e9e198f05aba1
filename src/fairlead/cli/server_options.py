"""The options of `fairlead up` and `fairlead server`, and the data directory that they name."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import LogLevelOption, Output
from fairlead.cli.output import fail
from fairlead.cli.typer_commands import Options

PORT = 7070

Data = Annotated[
    Path | None, typer.Option("--data", help="Data directory. By default FAIRLEAD_DATA, else ~/.local/share/fairlead.")
]
Database = Annotated[
    str,
    typer.Option(
        help="Keep the data in this PostgreSQL database, such as postgresql://host/fairlead, instead of the data "
        "directory. Several servers may share it: the partitions are spread over them, and each takes over those of a "
        "server that fails.",
        envvar="FAIRLEAD_DATABASE",
        metavar="URL",
        show_envvar=True,
    ),
]
SecretsKey = Annotated[
    Path | None,
    typer.Option(
        help="File with the key that encrypts secrets. By default the credential of systemd, else a file "
        "beside the data directory."
    ),
]


class ServerOptions(Output):
    """The options that `up` and `server` share."""

    data: Data = None
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65_535)] = PORT
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration file for the first start. Later starts keep the configuration that the data directory "
            "has; `fairlead config apply` changes it."
        ),
    ] = None
    secrets_key: SecretsKey = None
    log_size: Annotated[str, typer.Option(help="Largest size of the server's log; older lines are dropped.")] = "160Mi"
    log_level: LogLevelOption = "info"
    history_size: Annotated[
        str, typer.Option(help="Largest size of the history of finished jobs; the oldest jobs are dropped.")
    ] = "4Gi"
    history_age: Annotated[
        str, typer.Option(help="Drop jobs from the history at this age, such as 365d. By default only its size counts.")
    ] = ""
    journal_age: Annotated[
        str,
        typer.Option(
            help="Keep records in the journal for this time. A backup can be restored to any moment within it."
        ),
    ] = "1h"
    outputs: Annotated[
        str,
        typer.Option(
            help="Where to keep output: result files of all tasks, and logs of tasks on nodes of pools, copied before "
            "such a node is removed. A folder, or an object store as s3://BUCKET/PREFIX. By default a folder in the "
            "data directory.",
            metavar="PLACE",
        ),
    ] = ""
    outputs_endpoint: Annotated[
        str, typer.Option(help="With --outputs s3://…: address of the object store, if it is not AWS.", metavar="URL")
    ] = ""
    outputs_size: Annotated[str, typer.Option(help="Largest size of all kept output; the oldest is dropped.")] = "16Gi"
    outputs_age: Annotated[str, typer.Option(help="Age at which kept output is dropped.")] = "30d"
    traces: Annotated[
        str,
        typer.Option(
            help="Send a trace of each job to this OpenTelemetry collector (OTLP over HTTP), such as "
            "http://127.0.0.1:4318/v1/traces. Needs the extra: pip install 'fairlead\\[otel]'.",
            metavar="URL",
        ),
    ] = ""


class NetworkOptions(Options):
    """The options of `server` alone: a server that other machines and other servers reach."""

    host: Annotated[
        str, typer.Option(help="Address to listen on. One that other machines can reach needs --certificate and --key.")
    ] = "127.0.0.1"
    certificate: Annotated[Path | None, typer.Option(help="PEM file with the certificate for TLS.")] = None
    key: Annotated[Path | None, typer.Option(help="PEM file with the private key of --certificate.")] = None
    database: Database = ""
    lease: Annotated[
        str,
        typer.Option(help="With --database: other servers take over from one that has been silent for this time."),
    ] = "3s"
    advertise: Annotated[
        str,
        typer.Option(
            help="With --database: URL at which agents, users and other servers reach this one. By default made from "
            "--host and --port.",
            metavar="URL",
        ),
    ] = ""
    kubernetes: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Also schedule the pods of the Kubernetes cluster in this kubeconfig file, as `fairlead kubernetes` "
            "does; `pod` means the cluster that this server runs in.",
        ),
    ] = ""
    kubernetes_rules: Annotated[
        Path | None, typer.Option(help="Rules file for pods, as in `fairlead kubernetes --rules`.")
    ] = None
    kubernetes_lease: Annotated[
        str, typer.Option(help="Lease for leader election, as in `fairlead kubernetes --lease`.")
    ] = ""


def check_database(database: str) -> None:
    """Exit if the text is not the address of a database."""
    if database and not database.startswith(("postgresql://", "postgres://")):
        fail("--database: it is not an address such as postgresql://host/fairlead", code=2)


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
