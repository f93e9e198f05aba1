"""Targets of make where their programs cannot be built: CI leaves the tests out and says so, others get an error."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.go_programs import NotBuilt
from tests.kubernetes.cluster.programs import KUBERNETES

ROOT = Path(__file__).parents[1]
TARGETS = [
    ("test-kubernetes", "tests with a Kubernetes cluster", "the programs of Kubernetes"),
    ("test-prometheus", "tests with a Prometheus", "the programs of Prometheus"),
]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make with an empty cache and without Go."""
    (folder / "bin").mkdir()
    for name in ("make", "sh"):
        found = shutil.which(name)
        assert found is not None
        (folder / "bin" / name).symlink_to(found)
    command = ["make", "-o", ".venv/.tools", f"PY={shlex.quote(sys.executable)}", *arguments]
    environment = {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("target", "tests", "programs"), TARGETS)
def test_brief_tests_are_left_out_with_one_line(tmp_path: Path, target: str, tests: str, programs: str) -> None:
    done = make(tmp_path, target, "BRIEF=1")
    assert done.returncode == 0, done.stderr
    why = f"{programs} are not in the cache, and there is no Go to build them"
    assert done.stderr.strip() == f"{tests} left out: {why}"
    assert "pytest" not in done.stdout


@pytest.mark.parametrize("target", [target for target, _, _ in TARGETS])
def test_the_whole_suite_is_not_left_out_in_silence(tmp_path: Path, target: str) -> None:
    done = make(tmp_path, target)
    assert done.returncode != 0
    assert "there is no Go to build them; see CONTRIBUTING.md" in done.stderr


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
@pytest.mark.parametrize(
    ("within", "why"), [(600.0, "etcd cannot be built; the lines above say why"), (0.0, "were not built within 0 s")]
)
def test_a_build_that_is_not_possible_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: float, why: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(NotBuilt, match=why):
        KUBERNETES.build(["etcd"], within)
