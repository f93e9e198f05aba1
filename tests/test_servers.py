"""Several servers on one database: one leads, the others stand by and take over."""

import getpass
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from tests.servers import PROGRAM, Agent, Server, fairlead_program, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::fairlead.NeverRuns")

Pair = tuple[Server, Server]


@pytest.fixture
def pair(tmp_path: Path, database: str) -> Iterator[Pair]:
    one, two = (Server(tmp_path, name, database, "--lease", "2s") for name in ("one", "two"))
    one.start()
    two.start()
    yield one, two
    for server in (one, two):
        if server.process is not None:
            server.kill()


def test_a_standby_takes_over(pair: Pair) -> None:
    one, two = pair
    with one.client() as client:
        job = client.submit(["true"], resources={"cpu": 1})
    command = ("token", "create", "--role", "user", "--user", "ann", "--json")
    token = json.loads(fairlead_program(one.url, one.token, *command))["secret"]
    with two.client() as client, pytest.raises(fairlead.Problem, match=f"stands by; {one.url} leads") as problem:
        list(client.jobs())
    assert problem.value.code == "standby"
    one.kill()
    wait_until(two.leads)
    with two.client() as client:
        assert client.job(job).state == "pending"
        client.submit(["true"])
    with fairlead.Client(two.url, token) as client:
        client.submit(["true"])
    one.start()
    assert not one.leads()
    two.kill(signal.SIGTERM)  # it gives its leases back
    wait_until(one.leads)
    with one.client() as client:
        assert len(list(client.jobs())) == 3


def test_tasks_and_users_go_on_when_their_server_is_killed(tmp_path: Path, pair: Pair) -> None:
    one, two = pair
    urls = f"{one.url},{two.url}"
    agent = Agent(tmp_path, "n1", urls, one.token)
    try:
        with fairlead.Client(urls, one.token) as client:
            job = client.submit(["sleep", "1000"], user=getpass.getuser())
            wait_until(lambda: client.job(job).state == "running")
            one.kill()
            again = client.submit(["sleep", "1001"], user=getpass.getuser())  # answered by the other server
            wait_until(lambda: client.job(again).state == "running")
            [task] = client.tasks(job)
            assert (task.state, task.attempt) == ("running", 1)
            assert [node.name for node in client.nodes()] == ["n1"]
            client.kill(job)
            wait_until(lambda: client.job(job).state == "killed")
        assert agent.log().count("joined") == 2
    finally:
        agent.stop()


def test_a_paused_leader_finds_itself_deposed(pair: Pair) -> None:
    """A leader that is stopped for longer than its lease serves nothing and writes nothing afterwards."""
    one, two = pair
    assert one.process is not None
    one.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(two.leads)
        with two.client() as client:
            job = client.submit(["true"])
    finally:
        one.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "stands by" in one.log())
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
        "fairlead: error: --database: it is not an address such as postgresql://host/fairlead\n",
    )
    code, text = said("--database", f"postgresql://me:geheim@/x?host={tmp_path}")
    assert code == 1 and "cannot connect" in text and "geheim" not in text
    code, text = said("--database", database, "--lease", "0.1s")
    assert code == 1 and "--lease: it is 0.1s; a lease has 1 to 300 s" in text
    Server(tmp_path, "one", database).start().kill(signal.SIGTERM)
    code, text = said("--database", database)  # with a key file of its own
    assert code == 1 and ("is missing" in text or "does not open" in text) and "key" in text
