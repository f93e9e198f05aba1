"""Tasks in containers: root folders, images of a registry, mounts, and what nodes say of themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import Up
from tests.packages import installed
from tests.people import needs_root
from tests.until import until

PROGRAMS = ("sh", "cat", "ls", "id", "sleep", "env", "touch")
TOOLS = ("skopeo", "umoci", "docker-registry")
NO_TOOLS = "tests of images left out: Debian: apt install skopeo umoci docker-registry"


def make_root(folder: Path) -> Path:
    """Make a root folder with a few programs of this machine, and the libraries that they need."""
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        libraries = re.findall(r"(/\S+)", listed)
        for source in (program, *libraries):
            place = folder / ("bin" if source == program else os.path.dirname(source)[1:]) / os.path.basename(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                shutil.copy(source, place)
    for name in ("etc", "tmp", "home", "opt"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "etc/marker").write_text("inside\n")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    site = Up(tmp_path_factory.mktemp("containers") / "data")
    shown = site.until("node", "list", said="box")
    assert shown
    if "image.folder=namespaces" not in site.run("node", "show", "box"):
        site.close()
        pytest.skip("this machine allows no namespaces")
    yield site
    site.close()


def test_a_task_sees_its_image_and_what_it_has_of_the_node(up: Up, root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("of the node\n")
    script = f"cat /etc/marker; id -u; cat /opt/new/place/file {data}/file; touch /opt/new/place/x /etc/x; ls /; env"
    mounts = ("--mount", f"{data}:/opt/new/place:ro", "--mount", str(data))
    told = up.ask("run", "--image", str(root), *mounts, "--directory", str(tmp_path), "--", "sh", "-c", script)
    lines = told.stdout.splitlines()
    assert lines[:2] == ["inside", str(os.getuid())], told
    assert lines[2:4] == ["of the node"] * 2
    assert told.stderr.count("Read-only file system") == 2
    assert {"bin", "etc", "proc", "dev", "tmp"} <= set(lines) and "boot" not in lines
    assert f"PWD={tmp_path}" in lines and "FAIRLEAD_INDEX=0" in lines
    assert next(line for line in lines if line.startswith("PATH=")).endswith("/usr/bin:/sbin:/bin")


def test_a_stop_reaches_the_program_and_attach_enters_the_container(up: Up, root: Path) -> None:
    job = up.run(
        "submit",
        "--image",
        str(root),
        "--",
        "sh",
        "-c",
        "trap 'echo asked; exit 0' TERM; echo on; while :; do sleep 0.1; done",
    )
    job = job.strip()
    up.until("logs", job, said="on\n")
    assert up.run("attach", job, "--", "cat", "/etc/marker") == "inside\n"
    assert up.run("attach", job, text="cat /etc/marker\n") == "inside\n"
    up.run("kill", job)
    up.run("wait", job, code=1)
    assert "asked" in up.run("logs", job)


def test_files_python_and_the_api_have_the_same_words(up: Up, root: Path, tmp_path: Path) -> None:
    stage = {"command": ["cat", "/etc/marker", "/opt/here"], "image": str(root), "mounts": [f"{tmp_path}/x:/opt/here"]}
    (tmp_path / "x").write_text("mounted\n")
    (tmp_path / "job.yaml").write_text(json.dumps({"name": "boxed", "stages": [stage]}))
    assert up.run("submit", "-f", str(tmp_path / "job.yaml"), "--follow").splitlines()[-2:] == ["inside", "mounted"]
    from fairlead import Client

    with Client(up.url, up.token) as client:
        job = client.submit(stage["command"], image=str(root), mounts=stage["mounts"])
        assert client.wait(job).state == "succeeded"
        assert b"".join(client.log(job)) == b"inside\nmounted\n"


def test_what_no_node_runs_is_told_with_its_remedy(up: Up, root: Path) -> None:
    for image, said in (
        ("oras://example.org/x", "no node runs an oras:// image as a container; install apptainer on nodes"),
        ("/images/x.sif", "no node runs a .sif file as a container; install apptainer"),
    ):
        asked = up.ask("submit", "--image", image, "--dry-run", "--", "true")
        assert asked.returncode == 1 and said in asked.stdout, asked
    for options, said in (
        (("--mount", "/tmp"), "there is none; add image"),
        (("--image", "ftp://x"), "is no image; write docker://NAME"),
        (("--image", str(root), "--mount", "x:y"), "is no mount; write SOURCE:TARGET"),
    ):
        refused = up.ask("submit", *options, "--", "true")
        assert refused.returncode and said in refused.stderr, refused
    for options, code, said in (
        (("--image", str(root), "--", "nothing"), 127, "command not found in the image: nothing"),
        (("--image", f"{root}-x", "--", "true"), 126, "is not a folder on box"),
        (
            ("--image", str(root), "--mount", "/no/thing", "--", "true"),
            126,
            "the mount /no/thing does not exist on box",
        ),
    ):
        failed = up.ask("run", *options)
        assert failed.returncode == code and said in failed.stderr, failed


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[str]:
    """A registry on this machine, with an image that has variables of its own."""

    def find() -> bool:
        return all(map(shutil.which, TOOLS))

    if not installed(find, *TOOLS):
        pytest.skip(NO_TOOLS)
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/stored}}}}\nhttp: {{addr: '{at}'}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", folder / "config.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    image = f"{folder}/oci:image"
    shutil.copytree(root, folder / "bundle/rootfs", symlinks=True)
    run = lambda *words: subprocess.run(words, cwd=folder, capture_output=True, check=True)  # noqa: E731
    run("umoci", "init", "--layout", f"{folder}/oci")
    run("umoci", "new", "--image", image)
    run("umoci", "insert", "--image", image, folder / "bundle/rootfs", "/")
    run("umoci", "config", "--image", image, "--config.env", "GREETING=hello", "--config.env", "PATH=/bin:/opt/x")

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(at.partition(":")[2]))) == 0

    until(listening)
    run("skopeo", "copy", "--dest-tls-verify=false", f"oci:{image}", f"docker://{at}/team/tool:1")
    (folder / "home/.config/containers").mkdir(parents=True)
    registries = f'[[registry]]\nlocation = "{at}"\ninsecure = true\n'
    (folder / "home/.config/containers/registries.conf").write_text(registries)
    yield f"{at} {folder / 'home'}"
    process.kill()
    process.wait()


@needs_root
def test_an_image_of_a_registry_is_fetched_once(up: Up, registry: str) -> None:
    at, home = registry.split()
    if "image.docker=unpacked" not in up.run("node", "show", "box"):  # the tools were installed after its start
        for agent in up.agents():
            agent.terminate()
        up.until("node", "show", "box", said="image.docker=unpacked")
    options = ("--cpu", "0.1", "-e", f"HOME={home}", "--image", f"docker://{at}/team/tool:1")
    array = up.run(
        "submit", *options, "--array", "3", "--", "sh", "-c", "cat /etc/marker; echo $GREETING $PATH"
    ).strip()
    up.run("wait", array)
    logs = [up.run("logs", array, "-i", str(index)) for index in range(3)]
    assert all("inside\nhello /bin:/opt/x" in log for log in logs)
    assert sum("fetching docker://" in log for log in logs) == 1
    again = up.ask("run", *options, "--", "cat", "/etc/marker")
    assert again.stdout == "inside\n" and "fetching" not in again.stderr
    missing = up.ask("run", "-e", f"HOME={home}", "--image", f"docker://{at}/team/none", "--", "true")
    assert missing.returncode == 126 and "was not found" in missing.stderr
