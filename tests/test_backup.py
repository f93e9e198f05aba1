"""`fairlead backup` and `fairlead restore`: all data of a running server, and its state at an earlier point."""

import json
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from typer.testing import CliRunner

import fairlead
from fairlead.cli.main import app
from fairlead.core.changes import SKIPPED
from fairlead.core.dump import dump
from fairlead.history.recorder import HistoryRecorder
from fairlead.history.store import History
from fairlead.journal import SqliteJournal
from fairlead.journal.codec import restore
from fairlead.journal.journal import LINE
from fairlead.journal.locate import open_journal
from fairlead.journal.snapshot import renew
from fairlead.journal.verify import verify
from fairlead.server import backup as backup_module
from fairlead.server.backup import Failed, Point, restore_backup
from fairlead.testing import World
from tests.live import Up
from tests.servers import Agent, Server
from tests.test_db_copy import key_of, made
from tests.until import until

pytestmark = pytest.mark.filterwarnings("ignore::fairlead.NeverRuns")

CONFIG: dict[str, object] = {"queues": {"root": {"q": {}}}}


def run(command: str, *arguments: object) -> dict[str, object]:
    result = CliRunner().invoke(app, [command, *map(str, arguments), "--json"])
    assert result.stdout, result.output
    answer: dict[str, object] = json.loads(result.stdout)
    assert answer["ok"] == (result.exit_code == 0), answer
    return answer


def refused(command: str, *arguments: object) -> str:
    answer = run(command, *arguments)
    assert not answer["ok"], answer
    return str(answer["problem"])


@pytest.fixture(params=["files", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a server's data."""
    return str(tmp_path / "server") if request.param == "files" else str(request.getfixturevalue("database"))


def server_on(folder: Path, place: str) -> Server:
    return Server(folder, "server", "" if place == str(folder / "server") else place).start()


def names_of(server: Server) -> list[str]:
    with server.client() as client:
        return [job.name for job in client.jobs()]


def test_a_running_server_is_backed_up_and_restored(tmp_path: Path, place: str) -> None:
    key = ("--secrets-key", tmp_path / "key")
    server = server_on(tmp_path, place)
    try:
        until(server.leads)
        stop, done = threading.Event(), list[str]()

        def submit() -> None:
            with server.client() as client:
                while not stop.is_set():
                    done.append(client.submit(["true"], name=f"job{len(done)}"))

        submitting = threading.Thread(target=submit)
        submitting.start()
        until(lambda: len(done) > 5)
        first = len(done)
        answer = run("backup", place, tmp_path / "first", *key)
        until(lambda: len(done) > first + 5)
        stop.set()
        submitting.join()
        run("backup", place, tmp_path / "second", *key)
        everything = names_of(server)
        assert "runs on" in refused("restore", tmp_path / "second", place, "--replace", *key)
    finally:
        server.kill()
    span = answer["partitions"]["default"]  # type: ignore[index]
    assert span["first"] == 1 and span["last"] > 5
    for name in ("first", "second"):
        with open_journal(tmp_path / name / "journal", read_only=True) as journal:
            assert [report.problem for report in verify(journal, lambda *_: None)] == ["", ""]
    if place.startswith("postgresql"):
        until(lambda: "runs on" not in refused("restore", tmp_path / "second", place, *key))
    assert "add --replace" in refused("restore", tmp_path / "second", place, *key)
    again = run("restore", tmp_path / "second", place, "--replace", *key)
    assert again["replaced"] and again["token_kept"] is (not place.startswith("postgresql"))
    server = server_on(tmp_path, place)
    try:
        until(server.leads)
        assert names_of(server) == everything
    finally:
        server.kill()
    run("restore", tmp_path / "second", tmp_path / "earlier", "--revision", span["last"], *key)
    run("restore", tmp_path / "first", tmp_path / "other", *key)
    states = []
    for name in ("earlier", "other"):
        with open_journal(tmp_path / name / "journal", read_only=True) as journal:
            state, seq = restore(journal, "default")
            states.append((seq, dump(state)))
            assert LINE <= journal.epoch("partition/default") < 2 * LINE
    assert states[0] == states[1]


def test_a_backup_that_is_restored_twice_gives_no_number_twice(tmp_path: Path, place: str) -> None:
    """What ran between the two restores is lost, and its numbers are not given again."""
    key = ("--secrets-key", tmp_path / "key")
    server = server_on(tmp_path, place)
    given: list[str] = []
    try:
        until(server.leads)
        run("backup", place, tmp_path / "first", *key)
        for _ in range(3):
            with server.client() as client:
                given.append(client.submit(["true"]))
            server.kill(signal.SIGTERM)
            run("restore", tmp_path / "first", place, "--replace", *key)
            server = server_on(tmp_path, place)
            until(server.leads)
    finally:
        server.kill()
    assert given == ["1", "1000001", "2000001"]


class Past:
    """The data of a server, with the truth about each revision of partition default."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made(folder)
        for path in [*folder.glob("journal*"), *folder.glob("history*")]:
            path.unlink()
        self.states: dict[int, bytes] = {}
        self.times: dict[int, int] = {}
        self.ended: dict[int, list[str]] = {}
        history = History(folder / "history")
        with SqliteJournal(folder / "journal") as journal:
            self._fill(
                World({"partitions": {"default": CONFIG}}, journal=journal, observers=[HistoryRecorder(history)])
            )
        history.flush()
        history.close()

    def _fill(self, world: World) -> None:
        world.nodes(2, prefix="n", cpu=2)
        over: list[str] = []
        for number in range(4):
            stages = [{"name": "s", "count": 2, "resources": {"cpu": 1}}]
            job = world.submit(name=f"job{number}", user="ann", stages=stages)
            for step in range(4):
                world.advance(7)
                if step == 2:
                    world.finish(job)
                world.cycle()
                over += [f"job{number}"] * (step == 2)
                self._note(world, over)
            if number in (1, 2):
                renew(self.folder / "journal", "default")
        world.configure({"partitions": {"default": CONFIG, "later": CONFIG}})
        world.cycle()
        self._note(world, over)

    def _note(self, world: World, over: list[str]) -> None:
        with SqliteJournal(self.folder / "journal", read_only=True) as journal:
            state, seq = restore(journal, "default")
        self.states[seq], self.times[seq], self.ended[seq] = dump(state), state.now, sorted(over)


def found(place: Path | str) -> tuple[int, bytes, list[str], list[str]]:
    """Return revision, state, ended jobs in the history, and partitions with a state."""
    is_folder = isinstance(place, Path)
    with open_journal(place / "journal" if is_folder else place, read_only=True) as journal:  # type: ignore[operator]
        state, seq = restore(journal, "default")
        assert [report.problem for report in verify(journal, lambda *_: None) if report.problem] == []
        streams = journal.streams()
    history = History(place / "history" if is_folder else place)  # type: ignore[operator]
    try:
        return seq, dump(state), sorted(job.name for job in history.jobs("default")), streams
    finally:
        history.close()


def test_every_revision_at_hand_can_be_restored(tmp_path: Path, database: str) -> None:
    past = Past(tmp_path / "data")
    answer = run("backup", tmp_path / "data", tmp_path / "backup")
    span = answer["partitions"]["default"]  # type: ignore[index]
    assert 1 < span["first"] < span["last"]
    for seq in past.states:
        target = tmp_path / f"to-{seq}"
        command = ("restore", tmp_path / "backup", target, "--revision", seq, "--secrets-key", key_of(past.folder))
        if seq <= span["first"]:
            assert "has the records" in refused(*command)
            continue
        assert run(*command)["ok"]
        streams = ["cluster", "partition/default"] + ["partition/later"] * (seq == max(past.states))
        assert found(target) == (seq, past.states[seq], past.ended[seq], streams)
    last, middle = max(past.states), sorted(past.states)[-4]
    key = ("--secrets-key", key_of(past.folder))
    assert run("restore", tmp_path / "backup", database, "--revision", middle, *key)["ok"]
    assert found(database)[:3] == (middle, past.states[middle], past.ended[middle])
    replaced = run("restore", tmp_path / "backup", database, "--replace", *key)["replaced"]
    assert found(database)[:3] == (last, past.states[last], past.ended[last])
    with psycopg.connect(database) as db:
        schema = str(replaced).removeprefix("schema ")
        [(count,)] = db.execute(f"SELECT max(seq) FROM {schema}.reigns".encode()).fetchall()
    assert count == middle


def test_a_time_is_restored(tmp_path: Path) -> None:
    past = Past(tmp_path / "data")
    run("backup", tmp_path / "data", tmp_path / "backup")
    middle = sorted(past.states)[-4]
    for after, name in ((0, "at"), (1, "behind")):
        point = Point(past.times[middle] + after)
        arguments = (tmp_path / "backup", str(tmp_path / name), key_of(past.folder), point, False)
        restore_backup(*arguments, lambda *_: None, lambda *_: None)
        assert found(tmp_path / name)[:3] == (middle, past.states[middle], past.ended[middle])
    point = Point(past.times[middle] - 1)
    restore_backup(tmp_path / "backup", str(tmp_path / "before"), key_of(past.folder), point, False, _quiet, _quiet)
    assert found(tmp_path / "before")[0] < middle
    with pytest.raises(Failed, match="reaches back to"):
        restore_backup(tmp_path / "backup", str(tmp_path / "x"), key_of(past.folder), Point(1), False, _quiet, _quiet)


def _quiet(*_: object) -> None:
    """Show no progress."""


def test_places_and_points_that_are_refused(tmp_path: Path) -> None:
    data, backup, key = tmp_path / "data", tmp_path / "backup", ("--secrets-key", key_of(tmp_path / "data"))
    made(data)
    assert "no data of a server" in refused("backup", tmp_path / "none", backup)
    assert "No such file" in refused("backup", data, tmp_path / "none" / "backup")
    assert run("backup", data, backup)["ok"]
    assert "exists already" in refused("backup", data, backup)
    assert "--secrets-key" in refused("backup", "postgresql://nowhere/x", tmp_path / "other")
    assert "not a backup" in refused("restore", data, tmp_path / "to", *key)
    assert "key file of the backup is missing" in refused("restore", backup, tmp_path / "to")
    assert "there is no partition x" in refused(
        "restore", backup, tmp_path / "to", "--revision", 3, "--partition", "x", *key
    )
    assert "it was made at" in refused("restore", backup, tmp_path / "to", "--time", "2199-01-01", *key)
    assert "add --replace" in refused("restore", backup, data)
    other = tmp_path / "wrong-key"
    assert run("backup", data, tmp_path / "second", "--secrets-key", other)["ok"]  # the key is made new
    assert "does not open the file" in refused("restore", backup, tmp_path / "to2", "--secrets-key", other)
    assert not (tmp_path / "to").exists() and not (tmp_path / "to2").exists()
    (backup / "backup.json").write_text("{")
    assert "damaged" in refused("restore", backup, tmp_path / "to", *key)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_restore_that_fails_leaves_a_directory_as_it_was(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    made(data)
    assert run("backup", data, backup)["ok"]
    before = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}
    arguments = (backup, data, "--replace", "--revision", 3, "--partition", "x")
    assert "there is no partition x" in refused("restore", *arguments)
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def rows_of(place: str) -> tuple[int, list[str]]:
    """Return the last record of a server's data, and the schemas of its database."""
    schemas: list[str] = []
    if place.startswith("postgresql"):
        with psycopg.connect(place) as db:
            schemas = [name for (name,) in db.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_'")]
    with open_journal(place if schemas else f"{place}/journal", read_only=True) as journal:
        return journal.last("partition/default"), sorted(schemas)


def test_a_restore_that_fails_changes_nothing(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("--secrets-key", tmp_path / "key")
    server = server_on(tmp_path, place)
    until(server.leads)
    with server.client() as client:
        client.submit(["true"])
    run("backup", place, tmp_path / "good", *key)
    server.kill(signal.SIGTERM)
    before = rows_of(place)

    def need_unchanged(said: str, *options: object, backup: str = "good") -> None:
        assert said in refused("restore", tmp_path / backup, place, "--replace", *key, *options)
        assert rows_of(place) == before

    need_unchanged("at that time", "--time", "2020-01-01")
    need_unchanged("has the records", "--revision", 999)
    for name, junk in (("tokens", b"[1, 2"), ("secrets", b"junk"), ("nodes", b"{}"), ("history", b"x" * 5_000)):
        bad = tmp_path / f"bad-{name}"
        shutil.copytree(tmp_path / "good", bad)
        (bad / name).write_bytes(junk)
        need_unchanged(name, backup=bad.name)
    bad = tmp_path / "bad-journal"
    shutil.copytree(tmp_path / "good", bad)
    with closing(sqlite3.connect(bad / "journal")) as db, db:
        db.execute("UPDATE records SET payload = zeroblob(length(payload)) WHERE stream = 'partition/default'")
    need_unchanged("does not match its digest", backup=bad.name)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup_module, "_copy_history", fail)
    with pytest.raises((OSError, Failed)):
        restore_backup(tmp_path / "good", place, tmp_path / "key", None, True, _quiet, _quiet)
    assert rows_of(place) == before


def test_verify_names_an_empty_stream_and_damaged_documents(tmp_path: Path) -> None:
    data = tmp_path / "server"
    server = server_on(tmp_path, str(data))
    until(server.leads)
    with server.client() as client:
        until(lambda: client.job(client.submit(["true"])))
    server.kill(signal.SIGTERM)
    shutil.copy(tmp_path / "key", tmp_path / "server.secrets-key")

    def verified() -> str:
        return CliRunner().invoke(app, ["journal", "verify", str(data / "journal")]).output

    for part in ("cluster", "partition/default", "history", "tokens", "server-key", "secrets"):
        assert f"{part}: sound" in verified()
    for name in ("tokens", "secrets", "server-key", "history"):
        good = (data / name).read_bytes()
        (data / name).write_bytes(b"junk" * 2_000)
        assert f"{name}: DAMAGED" in verified()
        (data / name).write_bytes(good)
    for path in data.glob("journal*"):
        path.unlink()
    SqliteJournal(data / "journal").close()
    assert "cluster: DAMAGED" in verified() and "no records" in verified()


def test_a_backup_reveals_no_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made(data)
    run("backup", data, tmp_path / "backup")
    secret = json.loads((data / "server-key").read_bytes()).encode()
    for path in (tmp_path / "backup").iterdir():
        assert secret not in path.read_bytes(), path
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0


def test_tasks_that_a_restore_does_not_know_go_on(tmp_path: Path) -> None:
    key = ("--secrets-key", tmp_path / "key")
    (tmp_path / "config.yaml").write_text("partitions: {default: {ready_after: 5s, lease: 10s, heartbeat: 1s}}\n")
    server = Server(tmp_path, "server", "", "--config", str(tmp_path / "config.yaml")).start()
    until(server.leads)
    agent = Agent(tmp_path, "n0", server.url, server.token)

    def submit(name: str) -> int:
        """Run a job that never ends, and return the id of its process."""
        file = tmp_path / name
        with server.client() as client:
            client.submit(["sh", "-c", f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 600"], name=name)
        until(file.exists)
        return int(file.read_text())

    def is_alive(pid: int) -> bool:
        status = Path(f"/proc/{pid}/status")
        return status.exists() and "State:\tZ" not in status.read_text()

    try:
        kept = submit("kept")
        run("backup", tmp_path / "server", tmp_path / "backup", *key)
        server.kill(signal.SIGTERM)
        server.start()  # a later epoch
        until(server.leads)
        lost = submit("lost")
        server.kill()
        run("restore", tmp_path / "backup", tmp_path / "server", "--replace", *key)
        server.start()
        until(server.leads)
        with server.client() as client:
            until(lambda: [node.state for node in client.nodes()] == ["draining"])
            assert [(job.name, job.state) for job in client.jobs()] == [("kept", "running")]
            [later] = [client.submit(["true"], name="later")]
            assert int(later) == 2 + SKIPPED  # the number of the lost job is not given again
        health = json.load(urlopen(f"{server.url}/healthz"))
        assert "1 node knows tasks or leaders" in health["alarms"][0]
        assert "unknown attempt" in server.log() and "epoch not known" in server.log()
        server.kill()
        server.start()
        until(server.leads)
        time.sleep(12)  # longer than the lease: the agent follows this server, and its tasks go on
        assert is_alive(kept) and is_alive(lost)
    finally:
        server.kill()
        agent.stop()


def test_attempts_that_ended_after_a_backup_count_no_time_and_run_under_another_number(tmp_path: Path) -> None:
    key = ("--secrets-key", tmp_path / "key")
    (tmp_path / "config.yaml").write_text("partitions: {default: {ready_after: 5s}}\n")
    server = Server(tmp_path, "server", "", "--config", str(tmp_path / "config.yaml")).start()
    until(server.leads)
    agent = Agent(tmp_path, "n0", server.url, server.token)

    def ran(name: str) -> list[str]:
        """Return the attempts of a job that ran."""
        file = tmp_path / name
        return file.read_text().split() if file.exists() else []

    def submit(client: fairlead.Client, name: str, seconds: float = 0, **options: str) -> None:
        script = f"echo $FAIRLEAD_ATTEMPT >> {tmp_path / name}; sleep {seconds}"
        client.submit(["sh", "-c", script], name=name, resources={"cpu": "100m"}, **options)

    def ended() -> bool:
        with server.client() as client:
            return not list(client.jobs(state=["pending", "running"]))

    try:
        with server.client() as client:
            until(lambda: [node.state for node in client.nodes()] == ["up"])
            submitted = time.monotonic()
            submit(client, "runs", 1)
            until(lambda: ran("runs") and client.job("1").stages[0].running)
            agent.process.send_signal(signal.SIGSTOP)
            submit(client, "launched")
            submit(client, "once", on_loss="fail")
            until(lambda: client.job("3").stages[0].assigned)
        run("backup", tmp_path / "server", tmp_path / "backup", *key)
        backed_up = time.monotonic()
        agent.process.send_signal(signal.SIGCONT)
        until(ended)
        server.kill()
        run("restore", tmp_path / "backup", tmp_path / "server", "--replace", *key)
        server.start()
        until(server.leads)
        until(ended, 60)
        with server.client() as client:
            assert {job.name: job.state for job in client.jobs()} == {
                "runs": "succeeded",
                "launched": "succeeded",
                "once": "failed",
            }
        assert len(ran("runs")) == len(set(ran("runs"))) == 2
        assert len(ran("launched")) == len(set(ran("launched"))) == 2
        assert len(ran("once")) == 1
        server.kill()
        with closing(sqlite3.connect(tmp_path / "server" / "history")) as history:
            asked = "SELECT min(ran, ended - started) FROM attempts WHERE job = '1' AND outcome = 'lost'"
            assert 0 < history.execute(asked).fetchone()[0] / 1e6 <= backed_up - submitted
    finally:
        agent.process.send_signal(signal.SIGCONT)
        server.kill()
        agent.stop()


def test_results_of_lost_jobs_never_become_those_of_new_ones(tmp_path: Path) -> None:
    key = ("--secrets-key", tmp_path / "key")
    (tmp_path / "config.yaml").write_text("partitions: {default: {ready_after: 2s}}\n")
    server = Server(tmp_path, "server", "", "--config", str(tmp_path / "config.yaml")).start()
    until(server.leads)
    agent = Agent(tmp_path, "n0", server.url, server.token)
    ran = tmp_path / "ran"
    ran.mkdir()
    try:
        with server.client() as client:
            until(lambda: [node.state for node in client.nodes()] == ["up"])
        run("backup", tmp_path / "server", tmp_path / "backup", *key)
        with server.client() as client:
            lost = [client.submit(["touch", str(ran / f"lost{at}")], resources={"cpu": 1}) for at in range(4)]
            until(lambda: len(list(ran.iterdir())) == 4)
            agent.process.send_signal(signal.SIGSTOP)  # it may not have reported their ends
        server.kill()
        run("restore", tmp_path / "backup", tmp_path / "server", "--replace", *key)
        server.start()
        until(server.leads)
        with server.client() as client:
            new = [client.submit(["touch", str(ran / f"new{at}")], resources={"cpu": 1}) for at in range(4)]
            assert not {*lost} & {*new}
            agent.process.send_signal(signal.SIGCONT)
            until(lambda: not list(client.jobs(state=["pending", "running"])), 60)
            assert {job.id: job.state for job in client.jobs()} == dict.fromkeys(new, "succeeded")
        assert sorted(path.name for path in ran.iterdir() if path.name.startswith("new")) == [
            f"new{at}" for at in range(4)
        ]
    finally:
        agent.process.send_signal(signal.SIGCONT)
        server.kill()
        agent.stop()


def test_a_new_administrators_token_is_announced(tmp_path: Path) -> None:
    key = ("--secrets-key", str(tmp_path / "key"))
    up = Up(tmp_path / "data", *key, agent=False)
    try:
        up.run("backup", str(up.folder), str(tmp_path / "backup"), *key)
        said = up.run("restore", str(tmp_path / "backup"), str(tmp_path / "moved"), *key)
        assert "the administrator's token changes" in said and str(tmp_path / "moved") in said
    finally:
        up.close()
    said = up.run("restore", str(tmp_path / "backup"), str(up.folder), "--replace", *key)
    assert "token" not in said
    before, again = up.token, Up(tmp_path / "data", *key, agent=False)
    try:
        assert again.token == before
    finally:
        again.close()
    other = Up(tmp_path / "moved", *key, agent=False)
    try:
        assert other.token != before
    finally:
        other.close()
