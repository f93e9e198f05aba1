"""Start times, stories, traces and what-if, from the command line to the second process of a real server."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from tests.live import Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("future") / "data")
    yield server
    server.run("down", "--kill")
    server.process.wait(60)


def words(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.fixture
def waiting(up: Up) -> Iterator[tuple[str, str]]:
    """Yield a running job of 10 minutes that fills the machine, and a job that waits for it."""
    up.run("run", "--name", "quick", "--", "true")
    up.run("run", "--name", "quick", "--", "true")
    first = up.run("submit", "--name", "long", "--cpu", "4", "--estimate", "10min", "--", "sleep", "600").strip()
    second = up.run("submit", "--name", "next", "--cpu", "4", "--estimate", "10min", "--", "sleep", "600").strip()
    yield first, second
    up.ask("kill", first, second)
    up.run("wait", first, second, code=None)


def test_eta_of_a_waiting_job(up: Up, waiting: tuple[str, str]) -> None:
    first, second = waiting
    (running, later) = json.loads(up.run("eta", first, second, "--json"))
    assert running["text"] == f"job {first} has started already"
    assert running["state"] == "running" and running["started"] and running["start"] is None
    assert later["state"] == "pending" and later["started"] is None
    assert later["earliest"] <= later["start"] <= later["latest"]
    assert re.match(rf"job {second} starts in about .*\(90 % sure: ", up.run("eta", second))


def test_the_client_asks_for_many_jobs_at_once(up: Up, waiting: tuple[str, str]) -> None:
    with fairlead.Client(up.url, up.token) as client:
        asked = [*waiting, waiting[0]]
        assert [found.job for found in client.eta(*asked)] == asked
        with pytest.raises(fairlead.Problem, match="name at least one job"):
            client.eta()


def test_eta_of_a_job_that_is_not_there(up: Up) -> None:
    refused = up.ask("eta", "nothing")
    assert refused.returncode == 1 and "there is no job" in refused.stderr


def test_a_dry_run_says_when_the_job_would_start(up: Up, waiting: tuple[str, str]) -> None:
    job = ("--name", "later", "--cpu", "4", "--estimate", "1min", "--", "true")
    assert re.search(r"^it starts in about .*\(90 % sure: ", up.run("submit", "--dry-run", *job), re.MULTILINE)
    tried = json.loads(up.run("submit", "--dry-run", "--json", *job))
    assert not tried["starts"] and tried["eta"]["earliest"] <= tried["eta"]["start"], tried
    with fairlead.Client(up.url, up.token) as client:
        assert "later" not in {job.name for job in client.jobs()}


@pytest.mark.parametrize("command", [("submit", "--dry-run"), ("submit",), ("run",)])
def test_a_refused_job_is_one_line_or_a_document(up: Up, command: tuple[str, ...]) -> None:
    said = 'stages[0].resources.cpu: "-1" is negative; write 0 or more'
    refused = up.ask(*command, "--cpu=-1", "--", "true")
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", f"fairlead: error: {said}\n")
    document = json.loads(up.run(*command, "--json", "--cpu=-1", "--", "true", code=1))
    assert document["field"] == "stages[0].resources.cpu" and said.endswith(document["problem"])


def test_story_of_a_job(up: Up, waiting: tuple[str, str]) -> None:
    up.run("kill", *waiting)
    up.run("wait", *waiting, code=None)
    told = json.loads(up.run("story", waiting[0], "--json"))
    events = [line["event"] for line in told["lines"]]
    wanted = ["job submitted", "tasks placed", "tasks running", "job over", "tasks stopped", "tasks ended"]
    assert events == wanted, told
    assert [line["at"] for line in told["lines"]] == sorted(line["at"] for line in told["lines"])
    text = up.run("story", waiting[0])
    assert [line[21:] for line in text.splitlines()[:3]] == [
        "submitted by ann to queue root.default",
        "sent to box at once",
        "started on box (attempt 1)",
    ]
    assert "the job was killed, " in text and "killed by ann" in text


def test_story_of_a_waiting_job_ends_with_the_reason(up: Up, waiting: tuple[str, str]) -> None:
    last = up.run("story", waiting[1]).splitlines()[-1]
    assert "  now: 1 task waits, first in queue root.default; " in last and "too few CPUs free" in last, last


def test_the_bill_of_a_wait(up: Up, waiting: tuple[str, str]) -> None:
    _, second = waiting
    assert up.run("eta", second)
    up.run("kill", waiting[0])
    up.run("wait", waiting[0], code=None)
    lines = json.loads(up.run("story", second, "--json"))["lines"]
    at = {line["event"]: line["at"] for line in lines}
    bill = json.loads(up.run("story", second, "--why-so-long", "--json"))
    micros = [round(part["seconds"] * 1_000_000) for part in bill["causes"]]
    assert sum(micros) == round(bill["waited"] * 1_000_000)
    assert sum(micros) == round((at["tasks placed"] - at["job submitted"]) * 1_000_000)
    assert bill["causes"][0]["cause"] == "busy" and bill["since"] == bill["submitted"] and not bill["partly"]
    text = up.run("story", second, "--why-so-long")
    assert re.match(rf"job {second} waited .*:\n  .* for nodes busy with jobs of queue root\.default\n", text), text


def test_the_start_was_earlier_than_promised(up: Up, waiting: tuple[str, str]) -> None:
    _, second = waiting
    before = json.loads(up.run("promises", "--json"))
    up.run("eta", second)
    assert json.loads(up.run("promises", "--json"))["open"] == before["open"] + 1
    up.run("kill", waiting[0])
    up.run("wait", waiting[0], code=None)
    after = json.loads(up.run("promises", "--json"))
    assert after["earlier"] == before["earlier"] + 1 and after["scored"] == before["scored"] + 1
    assert re.match(r"kept \d+ % of \d+ promises, median error .*\n\d+ jobs started earlier", up.run("promises"))
    metrics = up.run("promises", "--since", "0s", "--json")
    assert json.loads(metrics)["scored"] == 0


def test_waits_by_cause(up: Up, waiting: tuple[str, str]) -> None:
    found = json.loads(up.run("usage", "--waits", "--by", "queue,user", "--json"))
    (row,) = found["rows"]
    assert row["group"] == {"queue": "root.default", "user": "ann"}
    assert (
        sum(part["seconds"] for part in row["causes"]) == pytest.approx(row["waited"], abs=1e-5) and row["waited"] > 0
    )
    assert "for nodes busy with jobs of queue root.default" in up.run("usage", "--waits", "--by", "week")
    assert "is not one of user, queue, week" in up.ask("usage", "--waits", "--by", "job").stderr
    assert "drop --used" in words(up.ask("usage", "--waits", "--used"))


def test_past_is_exported_as_a_trace(up: Up, waiting: tuple[str, str], tmp_path: Path) -> None:
    up.run("kill", *waiting)
    up.run("wait", *waiting, code=None)
    file = tmp_path / "past.yaml"
    said = up.run("export-trace", str(file)).strip()
    assert re.search(r": (\d+) jobs?, 1 node; jobs left out: (\d+) that never ran$", said), said
    assert "quick" in file.read_text() and "long" in file.read_text()
    result = json.loads(up.run("simulate", str(file), "--policy", "easy", "--json", "-"))
    assert result["jobs"] >= 2, result
    assert up.ask("export-trace", str(tmp_path / "past.txt")).returncode == 2


def test_what_if_there_were_more_nodes(up: Up) -> None:
    jobs = [
        up.run("submit", "--cpu", "4", "--estimate", "10min", "--time-limit", "1h", "--", "sleep", "600").strip()
        for _ in range(3)
    ]
    found = json.loads(up.run("whatif", "--add-nodes", "box:2", "--json"))
    assert found["compared"] == 2 and found["later"] == 0, found
    assert found["earlier"] == 2 and found["mean_wait_after"] < found["mean_wait_before"]
    assert up.run("whatif", "--add-nodes", "box:2").startswith("of 2 jobs waiting now: 2 would start earlier\n")
    gone = up.run("whatif", "--remove-node", "box")
    assert gone.startswith("of 2 jobs waiting now: 2 would no longer start\n")
    assert re.search(r"^mean wait until the start +\d+.* +no start$", gone, re.MULTILINE), gone
    assert "no pool and no node" in up.ask("whatif", "--add-nodes", "bax:2").stderr
    assert up.ask("whatif").returncode == 2
    up.run("kill", *jobs)


def test_what_if_over_the_past(up: Up, waiting: tuple[str, str]) -> None:
    found = json.loads(up.run("whatif", "--add-nodes", "box:1", "--replay", "1d", "--json"))
    assert found["compared"] >= 2 and found["later"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "easy", "--policy", "fcfs"), "Invalid value for --policy: given 2 times; drop all but one"),
        (("--policy", "easy", "--replay", "1d", "--replay", "2d"), "Invalid value for --replay: given 2 times"),
        (("--policy", "easy", "--replay", ""), "Invalid value for --replay: '' is not a time; write one such as 7d"),
        (("--policy", "easy", "--replay", "0d"), "Invalid value for --replay: '0d' is not a time"),
        (("--add-nodes", "a1"), "Invalid value for --add-nodes: 'a1' is not NAME:N, such as n1:2"),
        (("--add-nodes", ":1"), "Invalid value for --add-nodes: ':1' is not NAME:N"),
        (("--add-nodes", "a1=1"), "Invalid value for --add-nodes: 'a1=1' is not NAME:N"),
        (("--add-nodes", "a1:x"), "Invalid value for --add-nodes: 'x' is not a whole number; write NAME:N"),
        (("--add-nodes", "a1:1", "--add-nodes", "a1:2"), "Invalid value for --add-nodes: a1 is given twice"),
        (("--share", "root.a"), "Invalid value for --share: 'root.a' is not QUEUE=N"),
        (("--priority", "1=high"), "Invalid value for --priority: 'high' is not a whole number; write JOB=N"),
        (
            ("--policy", "nope"),
            "Invalid value for --policy: there is no policy and no file 'nope'; write one of fcfs, easy, shortest, "
            "conservative, learned, or the path of a configuration file",
        ),
        (("--policy", ""), "Invalid value for --policy: there is no policy and no file ''; write one of fcfs"),
    ],
)
def test_wrong_options_of_a_what_if(up: Up, options: tuple[str, ...], said: str) -> None:
    refused = up.ask("whatif", *options)
    assert refused.returncode == 2 and said in words(refused), refused.stderr


def test_a_what_if_names_the_field_that_is_wrong(up: Up) -> None:
    job = up.run("submit", "--", "true").strip()
    up.run("wait", job)
    with fairlead.Client(up.url, up.token) as client:
        with pytest.raises(fairlead.Problem) as refusal:
            client.what_if(priorities={job: 5})
        assert str(refusal.value) == f"priorities.{job}: job {job} is over; name a job that waits or runs"
        with pytest.raises(fairlead.Problem) as refusal:
            client.what_if(bogus=1)
        assert refusal.value.field == "bogus"
        assert refusal.value.detail.endswith(
            "it has add_nodes, policy, priorities, remove_nodes, replay, shares, without"
        )


@pytest.mark.parametrize("replay", [0, "0s", float("nan"), float("inf")])
def test_a_replay_of_no_time_is_refused(up: Up, replay: object) -> None:
    with fairlead.Client(up.url, up.token) as client, pytest.raises(fairlead.Problem) as refusal:
        client.what_if(policy="easy", replay=replay)
    assert (refusal.value.field, refusal.value.status) == ("replay", 422)
    assert "write one such as 7d" in refusal.value.detail
