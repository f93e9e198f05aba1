"""Prometheus, with its pins in go.mod and go.sum beside this file.

`python -m tests.prometheus.programs` builds it if it is neither installed nor in the cache, which takes minutes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.go_programs import Programs

PROMETHEUS = Programs(
    "Prometheus",
    "3.15.0",
    pins=Path(__file__).parent,
    packages={"prometheus": "github.com/prometheus/prometheus/cmd/prometheus"},
    tags="remove_all_sd",  # without the services of clouds, which are most of the modules
)
BRIEF_WITHIN = 420
"""Seconds for which it is built in CI before its tests are left out."""


def program() -> str:
    """Return the installed Prometheus, or else the one in the cache; build it there if needed."""
    return shutil.which("prometheus") or str(PROMETHEUS.build() / "prometheus")


if __name__ == "__main__" and shutil.which("prometheus") is None:
    PROMETHEUS.build_for("tests with a Prometheus", sys.argv[1:] == ["--brief"], PROMETHEUS.packages, BRIEF_WITHIN)
