"""`fairlead submit --engine kubernetes`: a job as pods."""

from __future__ import annotations

import json
from typing import Any

import typer

from fairlead.cli.options import pairs
from fairlead.cli.output import fail

ONLY_AGENTS = {
    "file": "write the options of the command line, or a Job of Kubernetes",
    "priority": "pods get their priority from a PriorityClass; write a Job of Kubernetes",
    "after": "Jobs of Kubernetes do not wait for each other",
    "secret": "use a Secret of Kubernetes in a Job of your own",
    "toleration": "write a Job of Kubernetes",
    "pool": "choose nodes with --selector",
    "on_failure": "the Job restarts its pods",
    "on_loss": "annotate pods with fairlead.dev/on-loss in a Job of your own",
    "directory": "the image decides",
    "output": "see `kubectl logs`",
    "error": "see `kubectl logs`",
    "wait": "see `kubectl wait`",
    "follow": "see `kubectl logs`",
    "partition": "the adapter decides",
}
"""Options that pods do not have, and what to do instead."""


def submit_pods(
    options: dict[str, Any], image: str | None, namespace: str | None, kubeconfig: str | None, as_json: bool
) -> None:
    """Create a Job of Kubernetes with the options of `fairlead submit`."""
    from fairlead.app import Failed, whole_seconds
    from fairlead.kubernetes.submitting import NotSubmitted, PodJob, create

    for key, remedy in ONLY_AGENTS.items():
        if options[key]:
            raise typer.BadParameter(f"pods do not have it; {remedy}", param_hint=f"--{key.replace('_', '-')}")
    if not image:
        raise typer.BadParameter("missing; pods need one", param_hint="--image")
    if not options["command"]:
        raise typer.BadParameter("missing; write the program and its arguments", param_hint="COMMAND")
    if options["array"] and options["gang"]:
        raise typer.BadParameter("it stands beside --array; choose one of them", param_hint="--gang")
    command = list(options["command"])
    requests = {"cpu": options["cpu"] or "1", "memory": options["memory"], "nvidia.com/gpu": options["gpu"]}
    requests |= pairs(options["resource"], "--resource")
    try:
        job = PodJob(
            image=image,
            command=["/bin/sh", "-c", " ".join(command)] if options["shell"] else command,
            name=options["name"] or "",
            tasks=options["array"] or options["gang"] or 1,
            gang=bool(options["gang"]),
            requests={name: amount for name, amount in requests.items() if amount},
            env=pairs(options["env"], "--env"),
            labels=pairs(options["label"], "--label"),
            selector=pairs(options["selector"], "--selector"),
            queue=options["queue"] or "",
            estimate=options["estimate"] or "",
            time_limit=whole_seconds(options["time_limit"], "--time-limit") if options["time_limit"] else 0,
            tries=options["tries"] or 1,
        )
        name = create(job, namespace or "", kubeconfig or "")
    except (Failed, NotSubmitted) as problem:
        fail(str(problem), as_json and {"ok": False, "problem": str(problem)})
    typer.echo(json.dumps({"job": name}) if as_json else name)
