"""`fairlead submit --engine kubernetes`: a job as pods."""

from __future__ import annotations

from typing import Any

from fairlead.cli.job_options import JobOptions, PodOptions
from fairlead.cli.option_values import pairs, wrong
from fairlead.cli.options import Output

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


def submit_pods(job: JobOptions, pods: PodOptions, others: dict[str, object], output: Output) -> None:
    """Create a Job of Kubernetes with the options of `fairlead submit`, and print its name."""
    from fairlead.kubernetes.job_manifest import NotSubmitted, PodJob, create
    from fairlead.server.failure import Failed

    given = {**vars(job), **others}
    for name, remedy in ONLY_AGENTS.items():
        if given[name]:
            raise wrong(f"--{name.replace('_', '-')}", f"pods do not have it; {remedy}")
    try:
        name = create(PodJob(**_fields(job, pods)), pods.namespace or "", pods.kubeconfig or "")
    except (Failed, NotSubmitted) as problem:
        output.fail(str(problem))
    output.show({"job": name}, [name])


def _fields(job: JobOptions, pods: PodOptions) -> dict[str, Any]:
    """Return the fields of a `PodJob`."""
    from fairlead.server.input_checks import whole_seconds

    if not pods.image:
        raise wrong("--image", "missing; pods need one")
    if not job.command:
        raise wrong("COMMAND", "missing; write the program and its arguments")
    if job.array and job.gang:
        raise wrong("--gang", "it stands beside --array; choose one of them")
    requests = {"cpu": job.cpu or "1", "memory": job.memory, "nvidia.com/gpu": job.gpu}
    requests |= pairs(job.resource, "--resource")
    return dict(
        image=pods.image,
        command=["/bin/sh", "-c", " ".join(job.command)] if job.shell else job.command,
        name=job.name or "",
        tasks=job.array or job.gang or 1,
        gang=bool(job.gang),
        requests={name: amount for name, amount in requests.items() if amount},
        env=pairs(job.env, "--env"),
        labels=pairs(job.label, "--label"),
        selector=pairs(job.selector, "--selector"),
        queue=job.queue or "",
        estimate=job.estimate or "",
        time_limit=whole_seconds(job.time_limit, "--time-limit") if job.time_limit else 0,
        tries=job.tries or 1,
    )
