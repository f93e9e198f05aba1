"""Result files from a task to its user: the real server, agent and spawners, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fairlead import AsyncClient, Client, Problem
from tests.live import SECONDS, Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("results")
    config = folder / "fairlead.json"
    config.write_text(json.dumps({"partitions": {"default": {"max_result_files": 5, "max_result_bytes": "1Mi"}}}))
    found = Up(folder / "data", "--name", "box", "--resource", "cpu=4", "--config", str(config))
    found.until("node", "list", said="box")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.url, up.token) as found:
        yield found


def run(client: Client, folder: Path, script: str, results: list[str], **fields: object) -> str:
    """Run a script in a folder to its end."""
    job = client.submit(["/bin/sh", "-c", script], directory=str(folder), results=results, **fields)
    client.wait(job, SECONDS)
    return job


def names(client: Client, job: str, **filters: object) -> dict[str, list[str]]:
    found = client.results(job, **filters)  # type: ignore[arg-type]
    return {f"{task.stage}.{task.index}.{task.attempt}": [file.name for file in task.files] for task in found}


def staged(up: Up) -> list[str]:
    return [path.name for path in (up.folder / "agent" / "logs").glob("*/*.file*")]


def test_files_are_collected_listed_and_fetched(up: Up, client: Client, tmp_path: Path) -> None:
    script = "mkdir -p out/deep; printf one >out/a.csv; printf two >out/deep/b.csv; : >out/empty.csv; echo x >other"
    job = run(client, tmp_path, script, ["out/**", "*.none"])
    (task,) = client.results(job)
    assert [(file.name, file.size) for file in task.files] == [
        ("out/a.csv", 3),
        ("out/deep/b.csv", 3),
        ("out/empty.csv", 0),
    ]
    assert task.warning == "no file matches *.none"
    shown = up.ask("results", job)
    assert shown.stdout.splitlines()[1].split() == ["main.0", "1", "3", "out/a.csv"]
    assert "warning: task main.0: no file matches *.none" in shown.stderr
    several = up.run("submit", "--wait", "--array", "3", "--cpu", "0.1", "--result", "*.none", "--", "true").strip()
    assert up.ask("results", several).stderr.count("3 tasks, such as main.0: no file matches *.none") == 1
    target = tmp_path / "target"
    assert up.run("results", job, "-o", str(target)).splitlines() == [
        str(target / "main.0" / name) for name in ("out/a.csv", "out/deep/b.csv", "out/empty.csv")
    ]
    assert (target / "main.0/out/deep/b.csv").read_text() == "two" and not list(target.rglob("*.part"))
    assert json.loads(up.run("results", job, "--json"))["tasks"][0]["files"][0] == {"name": "out/a.csv", "size": 3}
    assert staged(up) == []  # the node has removed its copies


def test_the_asynchronous_client_fetches_too(up: Up, client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, "echo hello >a.txt", ["a.txt"])

    async def story() -> None:
        async with AsyncClient(up.url, up.token) as other:
            assert [task.files[0].name for task in await other.results(job)] == ["a.txt"]
            (path,) = await other.fetch(job, tmp_path / "here")
            assert path.read_text() == "hello\n"

    asyncio.run(story())


def test_every_task_of_an_array_and_of_a_gang_has_its_own(client: Client, tmp_path: Path) -> None:
    script = "echo $FAIRLEAD_INDEX >out-$FAIRLEAD_INDEX.txt"
    for size in ({"array": 3}, {"count": 3}):
        job = run(client, tmp_path, script, ["out-%a.txt"], resources={"cpu": "100m"}, **size)
        assert names(client, job) == {f"main.{index}.1": [f"out-{index}.txt"] for index in range(3)}
        assert names(client, job, index=1) == {"main.1.1": ["out-1.txt"]}
    paths = client.fetch(job, tmp_path / "all")
    assert [path.read_text() for path in paths] == ["0\n", "1\n", "2\n"]


def test_failed_tasks_are_collected_by_attempt_and_stopped_ones_are_not(client: Client, tmp_path: Path) -> None:
    script = "echo $FAIRLEAD_ATTEMPT >a.txt; exit 3"
    job = run(client, tmp_path, script, ["a.txt"], tries=2)
    assert client.job(job).state == "failed"
    assert names(client, job) == {"main.0.2": ["a.txt"]} and names(client, job, attempt=1) == {"main.0.1": ["a.txt"]}
    (path,) = client.fetch(job, tmp_path / "first", attempt=1)
    assert path.read_text() == "1\n"
    job = client.submit(["/bin/sh", "-c", "echo x >b.txt; sleep 1000"], directory=str(tmp_path), results=["b.txt"])
    while not (tmp_path / "b.txt").exists():
        pass
    client.kill(job)
    client.wait(job, SECONDS)
    assert names(client, job) == {}


def test_what_may_not_be_collected_is_named(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    here = tmp_path / "here"
    here.mkdir()
    (here / "bad\x1bname").write_text("x")
    (here / "wrong\udcff").write_text("x")
    script = "ln -s ../secret link; ln -s .. up; mkfifo pipe; mkdir dir; echo x >good"
    job = run(client, here, script, ["*", "up/secret"])
    (task,) = client.results(job)
    assert [file.name for file in task.files] == ["good"]
    for text in (
        "link was not collected: it is a link",
        "up was not collected: it is a link",
        "pipe was not collected: it is not a regular file",
        "dir is a directory; write dir/** for all files below it",
        "'bad\\x1bname' was not collected: its name is too long or has control characters",
        "no file matches up/secret",
    ):
        assert text in task.warning


def test_limits_are_kept_and_named(client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, "for i in 1 2 3 4 5 6 7; do echo $i >f$i; done", ["f*"])
    (task,) = client.results(job)
    assert [file.name for file in task.files] == ["f1", "f2", "f3", "f4", "f5"]
    assert "2 files were not collected: a task may have 5 files with 1 MiB (max_result_files, max_result_bytes)" in (
        task.warning
    )
    job = run(client, tmp_path, "head -c 1100000 /dev/zero >large; head -c 700000 /dev/zero >small", ["large", "small"])
    (task,) = client.results(job)
    assert [(file.name, file.size) for file in task.files] == [("small", 700000)]
    assert "1 files were not collected" in task.warning


def test_only_those_who_see_the_job_may_fetch(up: Up, client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, "echo x >a", ["a"])
    token = up.run("token", "create", "--role", "user", "--user", "bob").strip().splitlines()[-1]
    with Client(up.url, token) as bob:
        for call in (lambda: bob.results(job), lambda: bob.fetch(job, tmp_path / "bob")):
            with pytest.raises(Problem) as refused:
                call()
            assert refused.value.status == 404
    for name in ("../a", "/etc/passwd", "b", "main.0/a"):
        path = f"{up.url}/api/v1/jobs/{job}/results/file"
        answer = httpx.get(path, params={"name": name}, headers={"authorization": f"Bearer {up.token}"})
        assert answer.status_code == 404, answer.text


def test_downloads_stay_below_their_directory(client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, "mkdir -p out; echo new >out/a", ["out/a"])
    target = tmp_path / "target"
    (target / "main.0").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (target / "main.0" / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        client.fetch(job, target)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    os.unlink(target / "main.0" / "out")
    (target / "main.0" / "out").mkdir()
    (tmp_path / "file").write_text("old")
    (target / "main.0" / "out" / "a").symlink_to(tmp_path / "file")
    client.fetch(job, target)
    assert (tmp_path / "file").read_text() == "old" and (target / "main.0" / "out" / "a").read_text() == "new\n"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/etc/passwd", "leads out of the working directory"),
        ("a/../../b", "leads out of the working directory"),
        ("", "a pattern has 1 to 1000 characters"),
        ("out/", "write out/** for all files below it"),
        ("%x", "stands for nothing"),
        ("a\tb", "control characters"),
    ],
)
def test_patterns_that_cannot_work_are_refused(up: Up, pattern: str, said: str) -> None:
    done = up.ask("submit", "--result", pattern, "--", "true")
    assert done.returncode != 0 and said in done.stderr, done.stderr


def test_large_results_arrive_whole(client: Client, tmp_path: Path) -> None:
    data = os.urandom(1_000_000)
    (tmp_path / "data").write_bytes(data)
    job = run(client, tmp_path, "true", ["data"])
    (path,) = client.fetch(job, tmp_path / "target")
    assert path.read_bytes() == data


def test_results_survive_a_crash_between_the_end_and_the_copy(tmp_path: Path) -> None:
    """On a node of its own: the agent names what it still has when it joins the next server."""
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        incoming = up.folder / "outputs" / ".incoming"
        incoming.rmdir()
        incoming.write_text("not a folder, so nothing can be stored")
        with Client(up.url, up.token) as client:
            job = run(client, tmp_path, "echo kept >a; echo $FAIRLEAD_INDEX", ["a"])
            with pytest.raises(TimeoutError, match="the result files of 1 tasks"):
                client.results(job, timeout=0.0)
        (tmp_path / "a").write_text("changed later")
        up.process.kill()
        up.process.wait(SECONDS)
        incoming.unlink()
        up.start()
        up.until("results", job, said="main.0  1")
        with Client(up.url, up.token) as client:
            (path,) = client.fetch(job, tmp_path / "fetched")
        assert path.read_text() == "kept\n" and up.run("logs", job) == "0\n"
    finally:
        up.close()


def test_results_are_removed_by_age_and_the_list_says_so_when_they_are_asked_for(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--name", "box", "--resource", "cpu=4", "--outputs-size", "1Ki")
    try:
        up.until("node", "list", said="box")
        with Client(up.url, up.token) as client:
            first = run(client, tmp_path, "head -c 900 /dev/zero >a", ["a"])
            assert client.fetch(first, tmp_path / "first")
            run(client, tmp_path, "head -c 900 /dev/zero >b", ["b"])
            up.until("results", str(int(first) + 1), said="b")
            assert names(client, first) == {"main.0.1": ["a"]}, "the history keeps what was collected"
            with pytest.raises(Problem, match="was removed, because of its age or the size of all files") as gone:
                client.fetch(first, tmp_path / "again")
            assert gone.value.code == "gone" and not list((tmp_path / "again").rglob("a"))
    finally:
        up.close()
