"""Snapshots: the code at submission, stored by content, fetched once a node, and unpacked as the working directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from fairlead import Client, Problem
from fairlead.client.snapshots import files_of, pack
from fairlead.history.outputs import MAX_BEGUN, OutputStore
from fairlead.history.stores import FolderStore
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from tests.live import Up
from tests.until import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    site = Up(tmp_path_factory.mktemp("snapshots") / "data")
    site.until("node", "list", said="box")
    yield site
    site.close()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "inner").mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh\necho first\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "inner/data").write_text("data\n")
    (folder / "link").symlink_to("run.sh")
    (folder / "big.log").write_text("not this")
    (folder / ".gitignore").write_text("*.log\n")
    return folder


def test_what_git_ignores_is_left_out_in_a_repository_and_elsewhere(code: Path) -> None:
    kept = {".gitignore", "run.sh", "inner/data", "link"}
    assert set(files_of(code)) == kept
    subprocess.run(["git", "init", "-q", code], check=True)
    subprocess.run(["git", "-C", code, "add", "run.sh"], check=True)
    assert set(files_of(code)) == kept
    assert files_of(code / "inner") == ["data"]


def test_equal_files_are_equal_bytes(code: Path) -> None:
    first, second = BytesIO(), BytesIO()
    pack(code, first)
    os.utime(code / "run.sh", (1, 1))
    pack(code, second)
    assert first.getvalue() == second.getvalue()
    (code / "run.sh").write_text("echo second\n")
    third = BytesIO()
    pack(code, third)
    assert third.getvalue() != first.getvalue()


def test_a_job_runs_what_was_submitted(up: Up, code: Path) -> None:
    options = ("--cpu", "0.1", "--snapshot", str(code), "--result", "made")
    script = "until [ -e go ]; do sleep 0.05; done; ./link; cat inner/data; ls; echo x > made"
    job = up.run("submit", *options, "--array", "2", "--tries", "2", "--shell", "--", script).strip()
    (code / "run.sh").write_text("echo second\n")
    work = until(lambda: list((up.folder / "agent/cache/work").glob("*-*[0-9a-f]")))
    until((work[0] / "link").is_symlink)
    up.interrupt()
    up.start()
    up.until("node", "list", said="up")
    (work[0] / "go").touch()
    up.run("wait", job)
    for index in ("0", "1"):
        said = up.run("logs", job, "-i", index).split()
        assert said[:2] == ["first", "data"] and "big.log" not in said
    assert "made" in up.run("results", job)
    assert len(list((up.folder / "agent/cache/contents").glob("*[0-9a-f]"))) == 1


def test_files_and_python_have_the_same_word(up: Up, code: Path) -> None:
    (code / "job.yaml").write_text(f"name: frozen\ncommand: [./link]\nsnapshot: {code}\n")
    assert "first" in up.run("submit", "-f", str(code / "job.yaml"), "--follow")
    with Client(up.url, up.token) as client:
        digest = client.store_snapshot(code)
        job = client.submit(["./link"], snapshot=digest)
        assert client.wait(job).state == "succeeded"
        with pytest.raises(Problem, match="is not stored; store it first"):
            client.submit(["true"], snapshot="0" * 64)
    for options, said in (
        (("--snapshot", "/no/where"), "is no directory"),
        (("--snapshot", str(code), "--directory", "/tmp"), "the files of the snapshot are the working directory"),
    ):
        refused = up.ask("submit", *options, "--", "true")
        assert refused.returncode and said in " ".join(refused.stderr.replace("│", " ").split()), refused.stderr


def test_content_is_sent_in_pieces_once_and_only_for_its_user(up: Up) -> None:
    content = os.urandom(9_000_000)
    bob_token = up.run("token", "create", "--user", "bob", "--role", "user").split()[-1]
    with Client(up.url, up.token) as client, Client(up.url, bob_token) as bob:
        digest = client.store(content)
        assert client.store(content) == digest
        asked = op.StoreContent(digest=digest, document=wire.ContentDocument(size=len(content)))
        assert client.send(asked).stored == len(content)
        assert bob.send(asked).stored == 0
        assert b"".join(client.stream(op.Content(digest=digest))) == content
        with pytest.raises(Problem, match="is not stored for this user"):
            b"".join(bob.stream(op.Content(digest=digest)))
        wrong = wire.ContentDocument(size=5, data=b"wrong")
        with pytest.raises(Problem, match="another SHA-256"):
            client.send(op.StoreContent(digest="0" * 64, document=wrong))
        with pytest.raises(Problem, match="is no SHA-256"):
            client.send(op.StoreContent(digest="etc", document=wrong))


def test_a_user_can_begin_only_a_few_contents(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path)
    store = OutputStore(folder)
    for number in range(9):
        assert store.add_content("default", "ann", f"{number}" * 64, 10, 0, b"part") == 4
    assert store.add_content("default", "bob", "0" * 64, 10, 0, b"part") == 4
    assert len(list(folder.incoming.iterdir())) == MAX_BEGUN + 1
    assert store.add_content("default", "ann", "8" * 64, 10, 4, b"") == 4, "the latest goes on"
