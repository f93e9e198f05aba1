"""Several servers on one database: each leads some partitions, and stands by for the others."""

import getpass
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import httpx
import psycopg
import pytest

import fairlead
from tests.servers import PROGRAM, Agent, Server, failing_program, fairlead_program
from tests.until import until

pytestmark = pytest.mark.filterwarnings("ignore::fairlead.NeverRuns")

Pair = tuple[Server, Server]
LEASE = "5s"
"""Longer than a busy machine stops a process; a standby waits for it after a kill."""


@pytest.fixture
def pair(tmp_path: Path, database: str) -> Iterator[Pair]:
    one, two = (Server(tmp_path, name, database, "--lease", LEASE) for name in ("one", "two"))
    one.start()
    two.start()
    yield one, two
    for server in (one, two):
        if server.process is not None:
            server.kill()


def runs(client: fairlead.Client, job: str) -> bool:
    """Return whether an agent has said that the job's tasks run. A job also counts as running while it is assigned.

    A client that did not submit the job may ask a server that has not read of it yet.
    """
    try:
        return {task.state for task in client.tasks(job)} == {"running"}
    except fairlead.Problem as problem:
        assert problem.code == "missing"
        return False


def test_a_standby_takes_over(pair: Pair) -> None:
    one, two = pair
    with one.client() as client:
        job = client.submit(["true"], resources={"cpu": 1})
    command = ("token", "create", "--role", "user", "--user", "ann", "--json")
    token = json.loads(fairlead_program(one.url, one.token, *command))["secret"]
    with two.client() as client, pytest.raises(fairlead.Problem, match=f"{one.url} leads partition") as problem:
        client.submit(["true"])
    assert problem.value.code == "standby"
    one.kill()
    until(two.leads)
    with two.client() as client:
        assert client.job(job).state == "pending"
        client.submit(["true"])
    with fairlead.Client(two.url, token) as client:
        client.submit(["true"])
    one.start()
    assert not one.leads()
    two.kill(signal.SIGTERM)  # it gives its leases back
    until(one.leads)
    with one.client() as client:
        assert len(list(client.jobs())) == 3


def test_a_standby_answers_reads(pair: Pair) -> None:
    """Its answers have a revision. A client that has written asks for that revision, and gets it."""
    one, two = pair
    read = httpx.Client(base_url=two.url, headers={"authorization": f"Bearer {one.token}"}, timeout=60)
    with one.client() as client, read:
        for _ in range(20):
            submitted = httpx.post(
                f"{one.url}/api/v1/jobs", json={"stages": [{"command": ["true"]}]}, headers=read.headers, timeout=60
            )
            revision = int(submitted.headers["fairlead-revision"])
            job = submitted.json()["job"]
            answer = read.get(f"/api/v1/jobs/{job}", params={"min_revision": revision})
            assert answer.status_code == 200 and answer.json()["state"] == "pending"
            assert int(answer.headers["fairlead-revision"]) >= revision
        assert len(read.get("/api/v1/jobs", params={"min_revision": revision}).json()["jobs"]) == 20
        behind = read.get("/api/v1/queues", params={"min_revision": revision + 1000})
        assert (behind.status_code, behind.json()["code"]) == (503, "behind")
        assert behind.json()["leader"] == one.url
        behind = httpx.get(
            f"{one.url}/api/v1/queues", params={"min_revision": revision + 1000}, headers=read.headers, timeout=60
        )
        assert (behind.status_code, behind.json()["field"]) == (409, "min_revision")
        [partition] = read.get("/api/v1/partitions").json()["partitions"]
        assert (partition["ready"], partition["leader"], partition["jobs"]) == (None, one.url, 20)
        waiting = read.get(f"/api/v1/jobs/{job}", params={"wait": 5})
        assert waiting.json()["code"] == "standby"
        client.kill(job)
    with fairlead.Client(f"{two.url},{one.url}", one.token) as client:
        for _ in range(10):
            job = client.submit(["true"])  # the first server does not lead
            client._connections.turn()
            assert client.job(job).state == "pending"  # answered by the server that does not lead


def test_tasks_and_users_go_on_when_their_server_is_killed(tmp_path: Path, pair: Pair) -> None:
    one, two = pair
    urls = f"{one.url},{two.url}"
    agent = Agent(tmp_path, "n1", urls, one.token)
    try:
        with fairlead.Client(urls, one.token) as client:
            job = client.submit(["sleep", "1000"], user=getpass.getuser())
            until(lambda: runs(client, job))
            one.kill()
            again = client.submit(["sleep", "1001"], user=getpass.getuser())  # answered by the other server
            until(lambda: runs(client, again))
            [task] = client.tasks(job)
            assert (task.state, task.attempt) == ("running", 1)
            assert [node.name for node in client.nodes()] == ["n1"]
            client.kill(job)
            until(lambda: client.job(job).state == "killed")
        assert agent.log().count("joined") == 2
    finally:
        agent.stop()


def test_a_paused_leader_finds_itself_deposed(pair: Pair) -> None:
    """A leader that is stopped for longer than its lease serves nothing and writes nothing afterwards."""
    one, two = pair
    assert one.process is not None
    one.process.send_signal(signal.SIGSTOP)
    try:
        until(two.leads)
        with two.client() as client:
            job = client.submit(["true"])
    finally:
        one.process.send_signal(signal.SIGCONT)
    until(lambda: not one.leads())
    with one.client() as client, pytest.raises(fairlead.Problem, match=f"{two.url} leads"):
        client.submit(["true"])
    with two.client() as client:
        assert [each.id for each in client.jobs()] == [job]


def test_options_of_a_database_that_are_refused(tmp_path: Path, database: str) -> None:
    def said(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [*PROGRAM, "server", "--data", str(tmp_path / "data"), "--port", "0", *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    assert said("--database", "db.example") == (
        2,
        "fairlead: error: --database: this is not the address of a database, such as postgresql://host/fairlead\n",
    )
    code, text = said("--database", f"postgresql://me:geheim@/x?host={tmp_path}")
    assert code == 1 and "cannot connect" in text and "geheim" not in text
    code, text = said("--database", database, "--lease", "0.1s")
    assert code == 1 and "--lease: it is 0.1s; a lease has 1 to 300 s" in text
    Server(tmp_path, "one", database).start().kill(signal.SIGTERM)
    code, text = said("--database", database)  # with a key file of its own
    assert code == 1 and ("is missing" in text or "does not open" in text) and "key" in text


FOUR = ("a", "b", "c", "d")


@pytest.fixture
def spread(tmp_path: Path, database: str) -> Iterator[Pair]:
    """Two servers that lead two of four partitions each."""
    file = tmp_path / "fairlead.yaml"
    file.write_text(json.dumps(configured(FOUR)))
    one = Server(tmp_path, "one", database, "--lease", LEASE, "--config", str(file)).start()
    assert one.led() == [*FOUR]
    two = Server(tmp_path, "two", database, "--lease", LEASE).start()
    try:
        until(lambda: (len(one.led()), len(two.led())) == (2, 2))
        yield one, two
    finally:
        for server in (one, two):
            if server.process is not None:
                server.kill()


def configured(partitions: Sequence[str]) -> dict[str, Any]:
    return {"partitions": {name: {"ready_after": "3s", "queues": {"root": {"q": {}}}} for name in partitions}}


def metrics(server: Server) -> str:
    asked = Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"})
    return urlopen(asked).read().decode()  # type: ignore[no-any-return]


def test_damage_that_a_follower_finds_is_an_alarm_at_once(pair: Pair, database: str) -> None:
    until(lambda: any(server.led() for server in pair))
    one, two = sorted(pair, key=lambda server: not server.led())
    with one.client() as client:
        client.submit(["true"])
    two.kill()
    with psycopg.connect(database, autocommit=True) as db:
        changed = db.execute("UPDATE fairlead.records SET payload = 'x' WHERE stream = 'partition/default' AND seq = 1")
        assert changed.rowcount == 1
    two.start()
    until(lambda: "its journal is damaged" in str(json.load(urlopen(f"{two.url}/healthz"))["alarms"]))
    assert two.log().count("is not followed") == 1


def test_partitions_spread_and_move(tmp_path: Path, spread: Pair) -> None:
    one, two = spread
    urls = f"{one.url},{two.url}"
    assert sorted([*one.led(), *two.led()]) == [*FOUR]
    agents = [Agent(tmp_path, f"n-{name}", urls, one.token, "--partition", name) for name in ("a", "d")]
    jobs: dict[str, str] = {}
    try:
        for name in FOUR:
            with fairlead.Client(urls, one.token, partition=name) as client:
                jobs[name] = client.submit(["sleep", "1000"], queue="root.q", user=getpass.getuser())
        for name in ("a", "d"):
            with fairlead.Client(urls, one.token, partition=name) as client:
                until(lambda client=client, name=name: runs(client, jobs[name]))
        assert 'fairlead_ready{partition="a"}' in metrics(one) + metrics(two)
        assert "drains" in fairlead_program(two.url, one.token, "server", "drain", one.url)
        until(lambda: (one.led(), two.led()) == ([], [*FOUR]))
        # A former leader shows no gauges of the partition, and a planned move is no error.
        until(lambda: not [line for line in metrics(one).splitlines() if line.startswith("fairlead_ready{")])
        assert "fairlead_nodes{" not in metrics(one) and 'fairlead_ready{partition="a"}' in metrics(two)
        lines = [json.loads(line) for line in one.log().splitlines() if "is given to another server" in line]
        assert lines and {line["level"] for line in lines} == {"info"}
        shown = fairlead_program(urls, one.token, "server", "list")
        assert f"{one.url}  drained" in shown
        assert shown.count(f"  {fairlead.__version__}\n") == 2  # each server tells the others its version
        for name in FOUR:
            with fairlead.Client(urls, one.token, partition=name) as client:
                assert client.job(jobs[name]).state in ("running", "pending")
                client.submit(["true"], queue="root.q")
        for name in ("a", "d"):  # the tasks go on under their new leader
            with fairlead.Client(two.url, one.token, partition=name) as client:
                until(lambda client=client: [node.state for node in client.nodes()] == ["up"])
                [task] = client.tasks(jobs[name])
                assert (task.state, task.attempt) == ("running", 1)
        refused = failing_program(urls, one.token, "server", "drain", two.url)
        assert "no other server is up that could lead" in refused
        assert "there is no server http://x" in failing_program(urls, one.token, "server", "drain", "http://x")
        assert f"{one.url} leads " in fairlead_program(urls, one.token, "server", "enable", one.url)
        until(lambda: (len(one.led()), len(two.led())) == (2, 2))
        two.kill()
        until(lambda: one.led() == [*FOUR])
        for name in FOUR:
            with one.client(name) as client:
                assert len(list(client.jobs())) == 2
    finally:
        for agent in agents:
            agent.stop()


def test_a_configuration_of_partitions_that_other_servers_lead(spread: Pair) -> None:
    one, two = spread
    urls = f"{one.url},{two.url}"
    with fairlead.Client(urls, one.token, partition="d") as client:
        job = client.submit(["true"], queue="root.q")
    for name in ("a", "b"):
        with fairlead.Client(urls, one.token, partition=name) as client:
            assert client.submit(["true"], queue="root.q") == "1"

    def apply(document: dict[str, Any]) -> Any:
        return until(lambda: applied(document))

    def applied(document: dict[str, Any]) -> Any:
        """Return the answer of the server that leads the configuration; None while a partition changes its leader."""
        answers = [
            httpx.put(
                f"{server.url}/api/v1/config",
                json=document,
                headers={"authorization": f"Bearer {one.token}"},
                timeout=60,
            )
            for server in (one, two)
        ]
        served = [answer for answer in answers if answer.json().get("code") != "standby"]
        assert len(served) == 1  # the other one names the server that leads the configuration
        [other] = [answer for answer in answers if answer not in served]
        assert other.json()["leader"] in (one.url, two.url)
        return None if served[0].json().get("code") == "unavailable" else served[0]

    # A queue with a job cannot get queues below it. This is tried on partitions of both servers; nothing is written.
    refused = configured(FOUR)
    refused["partitions"]["a"]["queues"]["root"]["new"] = {}
    refused["partitions"]["d"]["queues"]["root"]["q"] = {"below": {}}
    answer = apply(refused)
    assert (answer.status_code, answer.json()["field"]) == (409, "partitions.d.queues.root.q.below")
    with fairlead.Client(urls, one.token, partition="a") as client:
        assert [queue.path for queue in client.queues()] == ["root", "root.q"]
    changed = configured(("b", "c", "d", "e", "f"))
    changed["partitions"]["d"]["queues"]["root"]["new"] = {}
    answer = apply(changed)
    assert answer.status_code == 200, answer.text
    until(lambda: sorted([*one.led(), *two.led()]) == ["b", "c", "d", "e", "f"])
    with fairlead.Client(urls, one.token, partition="d") as client:
        assert [queue.path for queue in client.queues()] == ["root", "root.new", "root.q"]
        assert client.job(job).state == "pending"
    with fairlead.Client(urls, one.token, partition="f") as client:
        client.submit(["true"], queue="root.q")
    with (
        fairlead.Client(urls, one.token, partition="a") as client,
        pytest.raises(fairlead.Problem, match="no partition"),
    ):
        client.submit(["true"], queue="root.q")
    # Partitions that are made again go on with their numbers, whichever server led them and leads them now.
    assert apply(configured(("c", "d", "e", "f"))).status_code == 200
    assert apply(configured(("a", "b", "c", "d", "e", "f"))).status_code == 200
    for name in ("a", "b"):
        with fairlead.Client(urls, one.token, partition=name) as client:
            assert client.submit(["true"], queue="root.q") == "2"
