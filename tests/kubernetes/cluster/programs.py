"""The programs of a Kubernetes cluster, built once from the Go module registry and kept in a cache outside the tree.

`python -m tests.kubernetes.cluster.programs` builds them if they are not there, which takes minutes. go.mod and go.sum
beside this file pin everything. Their hash names the folder in the cache, so that new pins build anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
KUBERNETES = "1.37.1"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
MISSING = "no programs of Kubernetes in the cache and no Go to build them; see CONTRIBUTING.md"


def folder() -> Path:
    """Return the folder of the programs, which may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pins = hashlib.sha256((HERE / "go.sum").read_bytes() + (HERE / "go.mod").read_bytes()).hexdigest()[:16]
    return cache / "fairlead" / f"kubernetes-{pins}"


def built() -> bool:
    """True if all programs are in the cache."""
    return all((folder() / name).exists() for name in PACKAGES)


def build() -> Path:
    """Build the programs if they are not in the cache, and return their folder."""
    done = folder()
    if built():
        return done
    go = shutil.which("go")
    if go is None:
        raise SystemExit(MISSING)
    print(f"building Kubernetes {KUBERNETES} into {done}; this takes minutes", file=sys.stderr)
    version = "k8s.io/component-base/version"
    minor = KUBERNETES.split(".")[1]
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s -w", *(f"-X {version}.{key}={value}" for key, value in stamps.items())])
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    partial = done.with_name(f"{done.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    # One program after another: a build that was interrupted goes on where it was.
    for name, package in PACKAGES.items():
        if not (partial / name).exists():
            command = ["nice", go, "build", "-trimpath", "-ldflags", flags, "-o", str(partial / f"{name}.new"), package]
            subprocess.run(command, cwd=HERE, env=environment, check=True)
            (partial / f"{name}.new").rename(partial / name)
    partial.rename(done)
    return done


if __name__ == "__main__":
    print(build())
