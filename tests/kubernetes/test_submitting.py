"""`fairlead submit --engine kubernetes`: the Job that it makes, and what it refuses. No cluster is needed."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.kubernetes.groups import GroupObjects, group_of, membership, read_job
from fairlead.kubernetes.job_manifest import PodJob, manifest
from fairlead.kubernetes.names import GANG, QUEUE
from fairlead.kubernetes.objects import Job, Meta, OwnerReference, Pod
from fairlead.kubernetes.rules import Rules


def test_the_options_become_a_job() -> None:
    job = PodJob(
        image="busybox",
        command=["/bin/Sleep_Well", "60"],
        tasks=4,
        gang=True,
        requests={"cpu": "2", "nvidia.com/gpu": "1"},
        env={"A": "b"},
        selector={"zone": "a"},
        queue="root.ml",
        estimate="1h",
        time_limit=90,
        tries=3,
    )
    made = manifest(job)
    spec, pod = made["spec"], made["spec"]["template"]["spec"]
    assert made["metadata"]["generateName"] == "sleep-well-"
    assert (spec["parallelism"], spec["completions"], spec["backoffLimitPerIndex"]) == (4, 4, 2)
    assert made["metadata"]["annotations"][QUEUE] == "root.ml"
    assert pod["schedulerName"] == "fairlead" and pod["activeDeadlineSeconds"] == 90
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize(("gang", "least"), [(True, 4), (False, 0)])
def test_the_job_is_read_as_it_was_meant(gang: bool, least: int) -> None:
    made = manifest(PodJob(image="x", command=["y"], tasks=4, gang=gang))
    job = msgspec.convert({**made, "metadata": {**made["metadata"], "name": "y-1", "namespace": "n", "uid": "u"}}, Job)
    owner = OwnerReference(api_version="batch/v1", kind="Job", name="y-1", uid="u", controller=True)
    annotations = made["spec"]["template"]["metadata"]["annotations"]
    pod = Pod(Meta(name="y-1-0", namespace="n", uid="p", annotations=annotations, owner_references=[owner]))
    objects = GroupObjects()
    objects.put("Job", job, read_job(job))
    assert group_of(membership(pod), [pod], objects, Rules()).facts.minimum == least
    assert annotations[GANG] == str(gang).lower()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "kubernetes", "true"], "--image"),
        (["--engine", "kubernetes", "--image", "x", "--priority", "5", "true"], "PriorityClass"),
        (["--engine", "kubernetes", "--image", "x", "--pool", "p", "true"], "--selector"),
        (["--engine", "kubernetes", "--image", "x"], "COMMAND"),
        (["--engine", "kubernetes", "--image", "x", "--array", "2", "--gang", "2", "true"], "--gang"),
    ],
)
def test_what_pods_do_not_have_is_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["submit", *words])
    assert done.exit_code == 2 and message in " ".join(done.output.split())
