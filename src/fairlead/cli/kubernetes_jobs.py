"""`fairlead submit --engine kubernetes`: submit a job as pods of a Kubernetes Job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.cli.job_options import JobOptions, PodOptions
from fairlead.cli.option_values import pairs, wrong

if TYPE_CHECKING:
    from fairlead.cli.submit import SubmitOptions

ONLY_AGENTS = {
    "file": "write the options of the command line, or a Job of Kubernetes",
    "priority": "pods get their priority from a PriorityClass; write a Job of Kubernetes",
    "after": "Jobs of Kubernetes do not wait for each other",
    "hold": "set suspend in a Job of your own",
    "begin": "submit it then",
    "grid": "write one Job for each combination",
    "each_line": "write one Job for each line",
    "throttle": "set parallelism in a Job of your own",
    "min": "write a Job of Kubernetes",
    "where": "choose nodes with --selector",
    "prefer": "write a Job of Kubernetes",
    "near": "write a Job of Kubernetes",
    "apart": "write a Job of Kubernetes",
    "scaling": "Jobs of Kubernetes are not scaled",
    "set": "leave it out",
    "secret": "use a Secret of Kubernetes in a Job of your own",
    "toleration": "write a Job of Kubernetes",
    "pool": "choose nodes with --selector",
    "on_failure": "the Job restarts its pods",
    "on_loss": "annotate pods with fairlead.dev/on-loss in a Job of your own",
    "directory": "the image decides",
    "mount": "write volumes in a Job of your own",
    "snapshot": "build it into the image",
    "grace": "set terminationGracePeriodSeconds in a Job of your own",
    "output": "see `kubectl logs`",
    "error": "see `kubectl logs`",
    "dry_run": "leave it out",
    "wait": "see `kubectl wait`",
    "follow": "see `kubectl logs`",
    "partition": "the adapter decides",
}
"""Option that pods do not have → what to do instead."""


def submit_pods(job: JobOptions, pods: PodOptions, options: SubmitOptions) -> None:
    """Create a Job of Kubernetes with the options of `fairlead submit`, and print its name."""
    from fairlead.kubernetes.job_manifest import NotSubmitted, PodJob, create
    from fairlead.server.failure import Failed

    given = {**vars(job), **vars(options)}
    for name, remedy in ONLY_AGENTS.items():
        if given[name]:
            raise wrong(f"--{name.replace('_', '-')}", f"pods do not have it; {remedy}")
    if not job.image:
        raise wrong("--image", "missing; pods need one")
    if not job.command:
        raise wrong("COMMAND", "missing; write the program and its arguments")
    if job.array and not job.array.isdecimal():
        raise wrong("--array", "pods have the indices from 0 on; write a number of tasks")
    if job.array and job.gang:
        raise wrong("--gang", "tasks of an array start one by one, those of a gang together; drop --array or --gang")
    try:
        name = create(PodJob(**_fields(job, pods)), pods.namespace or "", pods.kubeconfig or "")
    except (Failed, NotSubmitted) as problem:
        options.fail(str(problem))
    options.show({"job": name}, [name])


def _fields(job: JobOptions, pods: PodOptions) -> dict[str, Any]:
    """Return the fields of a `PodJob`. Fields that are not given have their defaults."""
    from fairlead.server.failure import whole_seconds

    requests = {"cpu": job.cpu or "1", "memory": job.memory, "nvidia.com/gpu": job.gpu}
    requests |= pairs(job.resource, "--resource")
    fields = {
        "image": job.image,
        "command": job.whole_command,
        "name": job.name,
        "tasks": int(job.array) if job.array else job.gang,
        "gang": bool(job.gang),
        "requests": {name: amount for name, amount in requests.items() if amount},
        "env": pairs(job.env, "--env"),
        "labels": pairs(job.label, "--label"),
        "selector": pairs(job.selector, "--selector"),
        "queue": job.queue,
        "estimate": job.estimate,
        "time_limit": whole_seconds(job.time_limit, "--time-limit") if job.time_limit else 0,
        "tries": job.tries,
    }
    return {name: value for name, value in fields.items() if value}
