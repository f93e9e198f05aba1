"""`make test-kubernetes` where the programs of a cluster cannot be built: CI leaves its tests out, and says so."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `make test-kubernetes` with an empty cache and without Go."""
    (folder / "bin").mkdir()
    for name in ("make", "sh"):
        found = shutil.which(name)
        assert found is not None
        (folder / "bin" / name).symlink_to(found)
    command = ["make", "-o", ".venv/.ready", "test-kubernetes", f"PY={shlex.quote(sys.executable)}", *arguments]
    environment = {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_brief_tests_are_left_out_with_one_line(tmp_path: Path) -> None:
    done = make(tmp_path, "BRIEF=1")
    assert done.returncode == 0, done.stderr
    why = "the programs of Kubernetes are not in the cache, and there is no Go to build them"
    assert done.stderr.strip() == f"tests with a Kubernetes cluster left out: {why}"
    assert "pytest" not in done.stdout


def test_the_whole_suite_is_not_left_out_in_silence(tmp_path: Path) -> None:
    done = make(tmp_path)
    assert done.returncode != 0
    assert "there is no Go to build them; see CONTRIBUTING.md" in done.stderr


@pytest.mark.kubernetes
@pytest.mark.parametrize(
    ("within", "why"), [(600.0, "etcd cannot be built; the lines above say why"), (0.0, "were not built within 0 s")]
)
def test_a_build_that_is_not_possible_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: float, why: str
) -> None:
    from tests.kubernetes.cluster.programs import NotBuilt, build

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(NotBuilt, match=why):
        build(["etcd"], within)
