"""The programs of a Kubernetes cluster, with their pins in go.mod and go.sum beside this file.

`python -m tests.kubernetes.cluster.programs` builds those that are not in the cache, which takes minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.go_programs import Programs

VERSION = "1.37.1"
STAMPS = {
    "gitVersion": f"v{VERSION}",
    "gitMajor": "1",
    "gitMinor": VERSION.split(".")[1],
    "gitTreeState": "clean",
}
KUBERNETES = Programs(
    "Kubernetes",
    VERSION,
    pins=Path(__file__).parent,
    packages={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    },
    flags=" ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in STAMPS.items())]),
)
BRIEF = ("etcd", "kube-apiserver", "kwok")
"""The programs of the tests marked `brief`."""
BRIEF_WITHIN = 420
"""Seconds for which they are built before these tests are left out."""

if __name__ == "__main__":
    KUBERNETES.build_for("tests with a Kubernetes cluster", sys.argv[1:] == ["--brief"], BRIEF, BRIEF_WITHIN)
