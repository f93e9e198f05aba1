"""Volcano and YuniKorn for `bench.kubernetes`: how they are built, started and given pods.

Each is built once from the Go module registry, with the versions that its own go.mod and go.sum pin, into the cache
outside the tree that also has the control plane. Both run with their default settings, except for raised client limits,
as kube-scheduler does. The web service of YuniKorn always listens on port 9080.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.go_programs import NotBuilt, cache
from tests.kubernetes.cluster.control_plane import ControlPlane

MODULES = {
    "volcano": ("volcano.sh/volcano@v1.14.1", "./cmd/scheduler"),
    "yunikorn": ("github.com/apache/yunikorn-k8shim@v1.8.0", "./pkg/cmd/shim"),
}
"""Scheduler → its module, and the program in it."""
REPLACED = {"volcano": "volcano.sh/apis=volcano.sh/apis@v1.14.0"}
"""Scheduler → a module that its go.mod takes from its own source tree, and that the registry lacks in this form."""
CRDS = "config/crd/volcano/bases"
SETTINGS = "installer/helm/chart/volcano/config/volcano-scheduler.conf"
"""The settings of a Volcano installation. Without such a file the scheduler starts, and binds nothing."""
VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"
LIMIT = "5000"
"""Calls per second that a client allows itself."""
Json = dict[str, Any]


def build(name: str) -> Path:
    """Build a scheduler if it is not in the cache, and return its folder. Raise `NotBuilt` if that is not possible."""
    module, package = MODULES[name]
    done = cache() / f"{name}-{module.rpartition('@v')[2]}"
    if (done / name).exists():
        return done
    go = shutil.which("go")
    if go is None:
        raise NotBuilt(f"{name} is not in the cache, and there is no Go to build it")
    print(f"building {module} into {done}; this takes minutes", file=sys.stderr)
    flags = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly -p=1"}
    environment = {**os.environ, **flags}
    done.mkdir(parents=True, exist_ok=True)
    try:
        told = subprocess.run(
            [go, "mod", "download", "-json", module], cwd=done, env=environment, check=True, stdout=subprocess.PIPE
        )
        source = Path(json.loads(told.stdout)["Dir"])
        command = ["nice", "-n", "10", go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(done / "new")]
        if name in REPLACED:
            for file in ("go.mod", "go.sum"):
                (done / file).write_bytes((source / file).read_bytes())
            edit = [go, "mod", "edit", f"-replace={REPLACED[name]}", str(done / "go.mod")]
            subprocess.run(edit, env=environment, check=True)
            command += ["-mod=mod", f"-modfile={done / 'go.mod'}"]
        subprocess.run([*command, package], cwd=source, env=environment, check=True)
    except subprocess.CalledProcessError:
        raise NotBuilt(f"{name} cannot be built; the lines above say why") from None
    if name == "volcano":
        shutil.copytree(source / CRDS, done / "crds", copy_function=shutil.copyfile, dirs_exist_ok=True)
        shutil.copyfile(source / SETTINGS, done / "volcano.conf")
    (done / "new").rename(done / name)
    return done


def start(name: str, plane: ControlPlane) -> subprocess.Popen[bytes]:
    built = build(name)
    command = [str(built / name)]
    if name == "volcano":
        command += [f"--scheduler-conf={built / 'volcano.conf'}"]
        command += [f"--kubeconfig={plane.kubeconfig()}", "--leader-elect=false", "--cache-dumper=false"]
        command += [f"--kube-api-qps={LIMIT}", f"--kube-api-burst={LIMIT}"]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig()), "NAMESPACE": "default"}
    with (plane.folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def definitions(name: str) -> Iterator[tuple[str, Json]]:
    """Yield the objects that an installation of the scheduler has, as paths and bodies."""
    if name == "volcano":
        for file in sorted((build(name) / "crds").iterdir()):
            yield "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(file.read_text())
    elif name == "yunikorn":
        data = {"kubernetes.qps": LIMIT, "kubernetes.burst": LIMIT}
        yield "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "yunikorn-configs"}, "data": data}


def queues(name: str) -> Iterator[tuple[str, Json]]:
    """Yield the queues that have to be open before the scheduler accepts pods; Volcano's controller would open them."""
    if name == "volcano":
        for each, above in (("root", {}), ("default", {"parent": "root"})):
            kind = {"apiVersion": VOLCANO.removeprefix("/apis/"), "kind": "Queue"}
            yield f"{VOLCANO}/queues", {**kind, "metadata": {"name": each}, "spec": {"weight": 1, **above}}


def group(name: str, size: int) -> Json:
    """Return Volcano's PodGroup for a gang. Volcano's controller makes one for a plain pod, too."""
    needs = {"cpu": str(size), "memory": f"{size}Gi"}
    return {
        "apiVersion": VOLCANO.removeprefix("/apis/"),
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": size, "queue": "default", "minResources": needs},
        "status": {"phase": "Pending"},
    }


def mark(scheduler: str, metadata: Json, gang: str, size: int) -> None:
    """Mark the gang of a pod in its metadata, as the scheduler expects it; `size` is 1 for a plain pod."""
    if scheduler == "volcano":
        metadata["annotations"] = {"scheduling.k8s.io/group-name": gang}
    elif size == 1:
        metadata["labels"] = {"applicationId": "bench"}
    else:
        needs = {"cpu": "1", "memory": "1Gi"}
        groups = [{"name": "workers", "minMember": size, "minResource": needs}]
        metadata["labels"] = {"applicationId": gang}
        metadata["annotations"] = {
            "yunikorn.apache.org/task-group-name": "workers",
            "yunikorn.apache.org/task-groups": json.dumps(groups),
            "yunikorn.apache.org/schedulingPolicyParameters": "gangSchedulingStyle=Hard",
        }
