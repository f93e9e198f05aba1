"""What a newcomer meets on the first day: messages that name the remedy, and answers that hide nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.client import AsyncClient, Problem
from tests.live import PROGRAM, SECONDS, Up
from tests.until import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("day") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def words(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("secret", "remove", "bad name"), "name: 'bad name' is not a name"),
        (("explain", ""), "job: '' is not a name"),
        (("show", "../nodes"), "job: '../nodes' is not a name"),
        (("node", "show", "box/drain"), "node: 'box/drain' is not a name"),
        (("history", "--state", "bogus"), "'bogus' is not one of 'succeeded', 'failed', 'killed'"),
        (("ps", "--state", "bogus"), '"bogus" is not one of pending'),
        (("node", "list", "--state", "bogus"), "'bogus' is not one of"),
        (("token", "create", "--role", "bogus"), "'bogus' is not one of"),
    ],
)
def test_bad_names_and_states(up: Up, arguments: tuple[str, ...], said: str) -> None:
    done = up.ask(*arguments)
    assert done.returncode in (1, 2) and said in words(done)


def test_a_secret_with_a_bad_name(up: Up) -> None:
    assert "'bad name' is not a name" in words(up.ask("secret", "set", "bad name", text="x"))


def test_a_wrong_token_names_the_variable(up: Up) -> None:
    before = dict(up.environment)
    up.environment["FAIRLEAD_TOKEN"] = "fl_wrong"
    try:
        said = words(up.ask("ps"))
    finally:
        up.environment = before
    assert "set FAIRLEAD_TOKEN" in said and "Bearer" not in said


def test_a_server_that_was_killed_is_started_again_by_up(up: Up) -> None:
    before = dict(up.environment)
    up.environment["FAIRLEAD_URL"] = "http://127.0.0.1:1"
    try:
        done = up.ask("ps")
    finally:
        up.environment = before
    assert done.returncode == 3 and "is the server up? `fairlead up` starts one on this machine" in words(done)


def test_priority(up: Up) -> None:
    job = up.run("submit", "--cpu", "0.1", "sleep", "600").strip()
    note = "it passes only jobs of the same user, because users take turns in queue root.default"
    assert up.run("priority", job, "7") == f"{job}: priority 7; {note}\n"
    assert json.loads(up.run("show", "--json", job))["job"]["priority"] == 7
    assert up.run("priority", job, "--", "-3") == f"{job}: priority -3; {note}\n"
    with fairlead.Client(up.url, up.token) as client:
        client.set_priority(job, 5)
        assert client.job(job).priority == 5
        with pytest.raises(fairlead.Problem):
            client.set_priority("none", 5)
    up.run("kill", job)


def test_hold_release_and_requeue(up: Up) -> None:
    job, other = (up.run("submit", "--cpu", "0.1", "--label", "team=x", "sleep", "600").strip() for _ in range(2))
    up.until("ps", said=f"{job} ")
    assert up.run("hold", job) == f"{job}: held\n"
    assert json.loads(up.run("show", "--json", job))["job"]["held_by"]
    assert "already held by" in up.run("hold", job)
    assert f"job {job} is held by" in up.run("explain", job)
    with fairlead.Client(up.url, up.token) as client:
        until(lambda: client.job(job).stages[0].running == 1)
        client.requeue(job)
        until(lambda: client.job(job).state == "pending")
    assert "held by" in up.run("ps")
    said = up.run("release", "--label", "team=x")
    assert sorted(said.splitlines()) == sorted([f"{job}: released", f"{other}: it is not held"])
    with fairlead.Client(up.url, up.token) as client:
        until(lambda: next(client.tasks(job)).attempt == 2)
    lines = up.run("story", job)
    assert "held by" in lines and "released by" in lines and "requeued by" in lines
    assert "name jobs, or select them" in up.ask("kill").stderr
    up.run("kill", "--label", "team=x")


def test_tasks_of_a_job_are_killed_requeued_and_replaced(up: Up) -> None:
    job = up.run("submit", "--cpu", "0.1", "--array", "4", "sleep", "600").strip()
    with fairlead.Client(up.url, up.token) as client:
        until(lambda: client.job(job).stages[0].running == 4)
        assert up.run("replace", f"{job}[1]", f"{job}[2-3]") == f"{job}[1]: replaced\n{job}[2-3]: replaced\n"
        until(lambda: [task.attempt for task in client.tasks(job)] == [1, 2, 2, 2])
        until(lambda: client.job(job).stages[0].running == 4)
        assert up.run("requeue", f"{job}[0,3]", "--stage", "main") == f"{job}[0,3]: requeued\n"
        until(lambda: [task.attempt > 1 for task in client.tasks(job)] == [True] * 4)
        assert up.run("kill", f"{job}[2]") == f"{job}[2]: killed\n"
        until(lambda: [task.state for task in client.tasks(job)][2] == "killed")
        with pytest.raises(fairlead.Problem, match=rf"job {job} has no task main\[9\]; the last is 3"):
            client.stop_tasks(job, "kill", [9])
    lines = up.run("story", job)
    assert "told to stop on" in lines and "and run again, replaced by" in lines and ", killed by" in lines
    assert f"'{job}[3]'" in up.ask("replace", job).stderr
    assert "5-2 ends before it begins" in up.ask("kill", f"{job}[5-2]").stderr
    assert "x is not an index of a task" in up.ask("kill", f"{job}[x]").stderr
    assert "it needs tasks" in up.ask("kill", job, "--stage", "main").stderr
    up.run("kill", job)


def test_nodes_are_disabled_for_a_time(up: Up) -> None:
    with fairlead.Client(up.url, up.token) as client:
        (name,) = [node.name for node in client.nodes()]
        assert up.run("node", "disable", name, "--for", "2h", "--reason", "fan") == f"{name} is disabled for 2h\n"
        (node,) = client.nodes()
        assert (node.state, node.reason) == ("disabled", "fan") and node.until is not None
        up.run("node", "enable", name)
        (node,) = client.nodes()
        assert (node.state, node.until) == ("up", None)
    said = up.run("node", "disable", "--label", "rack=none", "--for", "90min", "--reason", "new switch")
    assert said == "0 nodes are disabled\n"
    listed = up.run("node", "closed")
    assert "rack=none" in listed and "new switch" in listed
    assert up.run("node", "enable", "--label", "rack=none") == "0 nodes are up\n"
    assert "rack=none" not in up.run("node", "closed")
    assert "name a node, or its labels" in up.ask("node", "disable").stderr
    assert "needs a time" in up.ask("node", "disable", "--label", "rack=none").stderr
    assert "has no unit" in up.ask("node", "disable", name, "--for", "2").stderr


def test_tolerations_and_estimates(up: Up) -> None:
    options = ("--toleration", "gpu", "--toleration", "spot", "--estimate", "00:05:00", "--cpu", "0.1")
    assert up.run("run", *options, "echo", "hi") == "hi\n"
    done = up.ask("submit", "--estimate", "soon", "true")
    assert done.returncode == 1 and "stages[0].estimate" in done.stderr


def test_a_drained_node_says_why(up: Up) -> None:
    up.run("node", "drain", "box", "--reason", "disk swap")
    assert "draining, disk swap" in up.run("node", "list")
    up.run("node", "drain", "box", "--reason", "new disk")
    assert "reason  new disk" in up.run("node", "show", "box")
    assert "no change" in up.run("node", "drain", "box")
    up.run("node", "enable", "box")
    assert json.loads(up.run("node", "show", "--json", "box"))["reason"] == ""
    assert up.ask("node", "drain", "box", "--reason", "x" * 201).returncode == 1


def test_setting_a_share_shows_its_siblings(up: Up) -> None:
    up.run("config", "apply", str(config(up, "{root: {default: {share: 50}, ml: {share: 50}, ci: {}}}")))
    done = up.ask("share", "set", "root.ml", "150")
    assert "root.ml: share 150 of 200, entitled to 75.0% of the cluster" in done.stdout
    assert "root.default: share 50 of 200, entitled to 25.0% of the cluster" in done.stdout
    assert "root.ci has no share and is entitled to nothing" in done.stderr
    assert "ml       active  150  " in up.run("queue", "list")
    up.run("share", "set", "root.ci", "200")
    assert "warning" not in up.ask("share", "set", "root.ml", "150").stderr


def config(up: Up, queues: str) -> Path:
    path = up.folder.parent / "fairlead.yaml"
    path.write_text(f"partitions: {{default: {{ready_after: 5s, queues: {queues}}}}}\n")
    return path


def test_tokens_are_listed_with_their_bounds(up: Up) -> None:
    up.run("token", "create", "--role", "join", "--pool", "gpu", "--partition", "default", "--for", "ann")
    lines = up.run("token", "list").splitlines()
    (join,) = (line for line in lines if "pool=gpu" in line)
    assert "pool=gpu partition=default for=ann" in join and " in " in join
    (owner,) = (line for line in lines if line.startswith("owner"))
    assert "never" in owner


def test_the_owners_token_is_not_revoked_by_accident(up: Up) -> None:
    done = up.ask("token", "revoke", "owner", text="n\n")
    assert done.returncode == 1 and "until the server is started again" in done.stdout + done.stderr
    up.run("ps")


def test_tasks_know_their_user(tmp_path: Path) -> None:
    gone = {name: os.environ.pop(name) for name in ("USER", "LOGNAME", "SHELL") if name in os.environ}
    try:
        up = Up.__new__(Up)
        up.folder = tmp_path / "data"
        up._here = None
        up._options = ("--name", "box", "--resource", "cpu=1")
        up.environment = {**os.environ, "FAIRLEAD_DATA": str(up.folder)}
        up.start()
        try:
            said = up.run("run", "--shell", 'echo "$USER $LOGNAME $SHELL"').split()
        finally:
            up.close()
    finally:
        os.environ.update(gone)
    import pwd

    person = pwd.getpwuid(os.getuid())
    assert said == [person.pw_name, person.pw_name, person.pw_shell]


def test_starting_again_leaves_no_join_tokens_and_prints_commands_that_work(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    environment["FAIRLEAD_DATA"] = str(tmp_path / "data")
    tokens = []
    for _ in range(3):
        process = subprocess.Popen(
            [PROGRAM, "up", "--port", "0", "--name", "box"],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        command = shlex.split(lines[4].partition("#")[0])
        assert command[1:] == ["run", "echo", "hello"], lines
        assert subprocess.run([command[0], "--version"], cwd=tmp_path, check=False, timeout=SECONDS).returncode == 0
        done = subprocess.run(
            [PROGRAM, "token", "list"], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
        )
        tokens.append(done.stdout.count("the agent that `up` starts"))
        process.terminate()
        process.wait(SECONDS)
    assert max(tokens) <= 1


def test_an_untrusted_certificate_names_the_variable(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-nodes", "-subj", "/CN=box"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    environment["FAIRLEAD_DATA"] = str(tmp_path / "data")

    def ask(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    process = subprocess.Popen(
        [PROGRAM, "server", "--port", "0", "--json", "--certificate", str(certificate), "--key", str(key)],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"].replace("127.0.0.1", "localhost")
        token = (tmp_path / "data" / "token").read_text().strip()
        done = ask("ps", FAIRLEAD_URL=url, FAIRLEAD_TOKEN=token, FAIRLEAD_CA=str(certificate))
        assert "write the server in the URL by a name that its certificate has" in words(done)
        done = ask("ps", FAIRLEAD_URL=url.replace("https", "http"), FAIRLEAD_TOKEN=token)
        assert "a server with a certificate needs https:// in its URL" in words(done)
        for arguments in (("ps",), ("down", "--kill")):
            done = ask(*arguments)
            assert done.returncode != 0 and "set FAIRLEAD_CA" in words(done)
            assert "is not trusted (self-signed certificate)" in words(done)
        done = ask("ps", FAIRLEAD_CA=str(tmp_path / "none.pem"))
        assert "none.pem has no certificates to trust" in words(done) and "FAIRLEAD_CA" in words(done)
        assert ask("ps", FAIRLEAD_CA=str(certificate)).returncode == 0

        async def partitions(url: str, authority: str) -> list[str]:
            async with AsyncClient(url, token, authority) as client:
                return await client.partitions()

        near = url.replace("localhost", "127.0.0.1")
        assert asyncio.run(partitions(near, str(certificate))) == ["default"]
        for wrong, trusted, remedy in (
            (url, str(certificate), "write the server in the URL by a name"),
            (near, "", "set FAIRLEAD_CA"),
            (near.replace("https", "http"), "", "needs https://"),
        ):
            with pytest.raises(Problem, match=remedy):
                asyncio.run(partitions(wrong, trusted))
        assert ask("down", "--kill", FAIRLEAD_CA=str(certificate)).returncode == 0
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_an_array_of_no_tasks_is_refused(up: Up) -> None:
    done = up.ask("submit", "--array", "0", "true")
    assert done.returncode == 1 and "stages[0].array" in words(done)


@pytest.mark.parametrize("arguments", [("submit", "--name", "j\udcf6b", "true"), ("ps", "--label", "a=\udcf6")])
def test_text_that_is_not_utf8_is_refused(up: Up, arguments: tuple[str, ...]) -> None:
    done = up.ask(*arguments)
    assert done.returncode == 1 and r"\udcf6" in words(done) and "is not text in utf-8; correct it" in words(done)


def test_lines_that_are_not_utf8_are_refused(up: Up, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"j\xf6b\n")
    assert "is not text in UTF-8; save it as UTF-8" in words(up.ask("submit", "--each-line", str(lines), "echo"))
