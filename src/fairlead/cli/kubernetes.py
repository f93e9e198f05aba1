"""`fairlead kubernetes`: schedule the pods of a Kubernetes cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import LogLevelOption, Partition
from fairlead.cli.output import fail


def kubernetes(
    server: Annotated[
        str, typer.Option(help="URL of the Fairlead server. By default FAIRLEAD_URL, or the server on this machine.")
    ] = "",
    partition: Partition = "",
    name: Annotated[
        str, typer.Option(help="Name of this resource manager, different for each Kubernetes cluster.")
    ] = "kubernetes",
    kubeconfig: Annotated[
        str,
        typer.Option(help="Kubeconfig file of the cluster. By default KUBECONFIG, or the service account of this pod."),
    ] = "",
    context: Annotated[str, typer.Option(help="Context in that file. By default its current context.")] = "",
    rules: Annotated[
        Path | None, typer.Option(help="YAML file that chooses the queue of a pod by its namespace and labels.")
    ] = None,
    scheduler_name: Annotated[str, typer.Option(help="Schedule pods with this schedulerName.")] = "fairlead",
    lease: Annotated[
        str,
        typer.Option(
            help="Lease for leader election among several copies of this program, as NAMESPACE/NAME; `none` for no "
            "election. By default `fairlead-` and --name, in the namespace of the context or pod.",
        ),
    ] = "",
    listen: Annotated[
        str, typer.Option(help="Serve /readyz, /healthz and /metrics at HOST:PORT, or nowhere with `none`.")
    ] = "127.0.0.1:7071",
    at_once: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of simultaneous calls to the API server of Kubernetes.")
    ] = 16,
    log_level: LogLevelOption = "info",
) -> None:
    """Schedule the pods of a Kubernetes cluster by a Fairlead server.

    Pods with `schedulerName: fairlead` are bound to nodes by Fairlead. Pods with the scheduling gate of Fairlead get a
    node selector and lose the gate, and their own scheduler binds them. The token in FAIRLEAD_TOKEN needs the role
    operator.
    """
    from fairlead.client.calls import Problem, tls_context
    from fairlead.client.endpoint import NotFound, find_endpoint
    from fairlead.kubernetes.setup import Options, Unusable, run
    from fairlead.server.logfile import logger_to

    try:
        endpoint = find_endpoint(url=server)
        trust = tls_context(endpoint)
        options = Options(
            name=name,
            partition=partition,
            kubeconfig=kubeconfig,
            context=context,
            rules=rules,
            scheduler=scheduler_name,
            lease=lease,
            listen="" if listen == "none" else listen,
            at_once=at_once,
        )
        log = logger_to(sys.stderr, "json", log_level)
        run(options, endpoint.url, endpoint.token, trust, log.info)
    except (NotFound, Problem, Unusable) as problem:
        fail(str(problem))
