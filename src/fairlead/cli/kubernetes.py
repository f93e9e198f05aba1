"""`fairlead kubernetes`: schedule the pods of a Kubernetes cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.cli.options import LogLevelOption, Partition
from fairlead.cli.output import fail
from fairlead.cli.typer_commands import Options, option


class AdapterOptions(Options):
    server: str = option(
        "URL of the Fairlead server. By default the variable FAIRLEAD_URL, else the server on this machine."
    )
    partition: Partition = ""
    name: str = option(
        "Name of this resource manager in Fairlead. Each Kubernetes cluster needs another name.", default="kubernetes"
    )
    kubeconfig: str = option(
        "Kubeconfig file of the cluster. By default the variable KUBECONFIG, else the service account of this pod."
    )
    context: str = option("Context in the kubeconfig file. By default its current context.")
    rules: Path | None = option("YAML file that chooses the queue of a pod by its namespace and labels.")
    scheduler_name: list[str] | None = option(
        "Schedule pods with this schedulerName; may be repeated. By default fairlead.", "--scheduler-name"
    )
    lease: str = option(
        "Lease for leader election among several copies of this program, as NAMESPACE/NAME, or `none` for no "
        "election. By default `fairlead-` and --name, in the namespace of the context or pod."
    )
    listen: str = option(
        "Serve /readyz, /healthz and /metrics at HOST:PORT, or nowhere with `none`.", default="127.0.0.1:7071"
    )
    at_once: int = option(
        "Largest number of simultaneous calls to the API server of Kubernetes.", default=16, min=1, max=1000
    )
    log_level: LogLevelOption = "info"


def kubernetes(options: AdapterOptions) -> None:
    """Schedule the pods of a Kubernetes cluster with a Fairlead server.

    Fairlead binds pods with `schedulerName: fairlead` to nodes. Pods of other schedulers may have the scheduling gate
    of Fairlead: it decides when they start, reserves room for them, and their own scheduler decides where. The token
    in the variable FAIRLEAD_TOKEN needs the role manager.
    """
    from fairlead.client.calls import Problem, tls_context
    from fairlead.client.endpoint import NotFound, find_endpoint
    from fairlead.kubernetes.names import SCHEDULER
    from fairlead.kubernetes.setup import Options as Settings
    from fairlead.kubernetes.setup import Unusable, run
    from fairlead.server.logfile import logger_to

    try:
        endpoint = find_endpoint(url=options.server)
        trust = tls_context(endpoint)
        names = ("name", "partition", "kubeconfig", "context", "rules", "lease", "at_once")
        listen = "" if options.listen == "none" else options.listen
        settings = Settings(
            schedulers=tuple(options.scheduler_name or (SCHEDULER,)),
            listen=listen,
            **{name: getattr(options, name) for name in names},
        )
        log = logger_to(sys.stderr, "json", options.log_level)
        run(settings, endpoint.url, endpoint.token, trust, log.info)
    except (NotFound, Problem, Unusable) as problem:
        fail(str(problem))
