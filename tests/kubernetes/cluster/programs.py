"""The programs of a Kubernetes cluster, built once from the Go module registry and kept in a cache outside the tree.

`python -m tests.kubernetes.cluster.programs` builds those that are not there, which takes minutes. go.mod and go.sum
beside this file pin everything. Their hash names the folder in the cache, so that new pins build anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

HERE = Path(__file__).parent
KUBERNETES = "1.37.1"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
BRIEF = ("etcd", "kube-apiserver", "kwok")
"""The programs of the tests marked `brief`."""
BRIEF_WITHIN = 420
"""Seconds for which they are built before these tests are left out."""


class NotBuilt(Exception):
    """The programs are not in the cache and cannot be built. The text says why."""


def folder() -> Path:
    """Return the folder of the programs, which may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pins = hashlib.sha256((HERE / "go.sum").read_bytes() + (HERE / "go.mod").read_bytes()).hexdigest()[:16]
    return cache / "fairlead" / f"kubernetes-{pins}"


def build(names: Iterable[str] = PACKAGES, within: float | None = None) -> Path:
    """Build the programs that are not in the cache, and return their folder. Raise `NotBuilt` if that is not possible.

    Each is put into the cache when it is complete, and Go keeps what it has compiled, so that a build which was cut
    short goes on where it was.
    """
    done = folder()
    missing = [name for name in names if not (done / name).exists()]
    if not missing:
        return done
    go = shutil.which("go")
    if go is None:
        raise NotBuilt("the programs of Kubernetes are not in the cache, and there is no Go to build them")
    print(f"building {', '.join(missing)} {KUBERNETES} into {done}; this takes minutes", file=sys.stderr)
    done.mkdir(parents=True, exist_ok=True)
    deadline = None if within is None else monotonic() + within
    for name in missing:
        left = None if deadline is None else max(0.0, deadline - monotonic())
        try:
            subprocess.run(_command(go, done, name), cwd=HERE, env=_environment(), check=True, timeout=left)
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"the programs of Kubernetes were not built within {within:g} s") from None
        except subprocess.CalledProcessError:
            raise NotBuilt(f"{name} cannot be built; the lines above say why") from None
        (done / f"{name}.new").rename(done / name)
    return done


def _command(go: str, done: Path, name: str) -> list[str]:
    version = "k8s.io/component-base/version"
    minor = KUBERNETES.split(".")[1]
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s -w", *(f"-X {version}.{key}={value}" for key, value in stamps.items())])
    return ["nice", go, "build", "-trimpath", "-ldflags", flags, "-o", str(done / f"{name}.new"), PACKAGES[name]]


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly"}


def main() -> None:
    """Build the programs: all, or with `--brief` those of the brief tests, within their time."""
    brief = sys.argv[1:] == ["--brief"]
    try:
        print(build(BRIEF, BRIEF_WITHIN) if brief else build())
    except NotBuilt as problem:
        if brief:
            sys.exit(f"tests with a Kubernetes cluster left out: {problem}")
        sys.exit(f"error: {problem}; see CONTRIBUTING.md")


if __name__ == "__main__":
    main()
