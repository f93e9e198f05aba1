"""`fairlead db copy`: all data of a server in another place, equal to the original."""

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.dump import dump
from fairlead.history.recorder import AttemptRow, JobRow
from fairlead.history.store import History, Used
from fairlead.identity.node_keys import Identities
from fairlead.identity.secrets import Secrets
from fairlead.identity.tokens import Tokens
from fairlead.journal import SqliteJournal
from fairlead.journal.codec import restore
from fairlead.journal.locate import open_journal
from fairlead.journal.snapshot import renew
from fairlead.server.storage import documents_of
from fairlead.testing import World
from fairlead.wire.agent_messages import Tasks
from tests.servers import Server
from tests.until import until


def made(folder: Path) -> str:
    """Create the data of a server: pruned records, a removed partition, all kinds of documents. Return a token."""
    folder.mkdir(mode=0o700)
    history = History(folder / "history")
    partition: dict[str, object] = {"queues": {"root": {"q": {}}}}
    with SqliteJournal(folder / "journal") as journal:
        world = World({"partitions": {"default": partition, "gone": partition}}, journal=journal)
        world.configure({"partitions": {"default": partition}})
        world.nodes(2, prefix="n", cpu=2)
        for number in range(3):
            world.submit(name=f"job{number}", user="ann", stages=[{"name": "s", "count": 2, "resources": {"cpu": 1}}])
            world.cycle()
            renew(folder / "journal", "default")
    row = JobRow("default", 1, "1", "old", "ann", "root.q", "succeeded", "", 1, 2, {"succeeded": 1}, {"a": "é"})
    tried = AttemptRow("default", 1, "s", (0, 1), 1, "succeeded", "n0", 0, "", None, 2, "1", "ann", "root.q")
    history.put([row], [tried, tried])
    history.put_used([Used("default", 1, "s", 0, 1, 0, 5, 6, 7)])
    history.flush()
    history.mark_copied("default", "n0", Tasks("1", 1, "s", 1, (0, 1)))
    history.close()
    tokens = Tokens(folder / "tokens")
    secret, _ = tokens.create("admin", "ann")
    Identities(folder, tokens)
    Secrets(folder / "secrets", key_of(folder)).set("ann", "db", "hidden")
    return secret


def key_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.secrets-key")


def run(*arguments: object) -> dict[str, object]:
    result = CliRunner().invoke(app, ["db", "copy", *map(str, arguments), "--json"])
    answer: dict[str, object] = json.loads(result.stdout)
    assert answer["ok"] == (result.exit_code == 0), answer
    return answer


def states(place: str | Path) -> list[object]:
    with open_journal(place, read_only=True) as journal:
        state, seq = restore(journal, "default")
        return [seq, dump(state), journal.streams(), journal.epoch("partition/gone"), journal.epoch("cluster")]


def test_there_and_back(tmp_path: Path, database: str) -> None:
    data, back = tmp_path / "data", tmp_path / "back"
    secret = made(data)
    answer = run(data, database)
    assert answer["copied"] == {
        **{"server-key": 1, "tokens": 1, "nodes": 0, "secrets": 1},
        **{"jobs": 1, "attempts": 1, "used": 1, "copied": 1, "results": 0, "promised": 0},
        **{"cluster": 2, "partition/default": answer["copied"]["partition/default"], "partition/gone": 0},  # type: ignore[index]
        "removed/gone": 1,
    }
    assert run(database, back, "--secrets-key", key_of(data))["ok"]
    assert states(data / "journal") == states(database) == states(back / "journal")
    for place in (database, back / "history"):
        history = History(place)
        [job] = history.jobs("default")
        assert (job.name, job.labels) == ("old", {"a": "é"})
        assert history.not_copied("default", ["n0"]) == []
        history.close()
    for folder, url in ((tmp_path / "x", database), (back, "")):
        documents = documents_of(folder, url, key_of(data))
        found = Tokens(documents("tokens")).find(secret)
        assert found is not None and found.user == "ann"
        assert Secrets(documents("secrets"), key_of(data)).values("ann", ("db",)) == {"db": "hidden"}
        assert documents("server-key").read() == (data / "server-key").read_bytes()
    with psycopg.connect(database) as db:
        [(content,)] = db.execute("SELECT content FROM fairlead.documents WHERE name = 'server-key'").fetchall()
    assert json.loads((data / "server-key").read_bytes()).encode() not in content


def test_a_server_goes_on_with_a_copy(tmp_path: Path, database: str) -> None:
    data = tmp_path / "data"
    made(data)
    before = states(data / "journal")
    run(data, database)
    (tmp_path / "key").write_bytes(key_of(data).read_bytes())
    (tmp_path / "key").chmod(0o600)
    server = Server(tmp_path, "server", database).start()
    try:
        until(server.leads)
        with server.client() as client:
            assert [job.name for job in client.jobs()] == ["job2", "job1", "job0"]
    finally:
        server.kill()
    assert states(data / "journal") == before


def test_places_that_are_refused(tmp_path: Path, database: str) -> None:
    data = tmp_path / "data"
    made(data)
    assert "no data of a server" in str(run(tmp_path / "none", database)["problem"])
    assert run(data, database)["ok"]
    assert "there is a journal already" in str(run(data, database)["problem"])
    assert "there is a journal already" in str(run(database, data)["problem"])
    assert "--secrets-key" in str(run(database, database)["problem"])
    (tmp_path / "key").write_bytes(key_of(data).read_bytes())
    (tmp_path / "key").chmod(0o600)
    server = Server(tmp_path, "server", database).start()
    try:
        until(server.leads)
        problem = run(database, tmp_path / "new", "--secrets-key", tmp_path / "key")["problem"]
        assert f"the server {server.url} runs on it" in str(problem)
    finally:
        server.kill()


def test_a_copy_that_differs_is_noticed(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    made(data)
    monkeypatch.setattr("fairlead.history.transfer.AT_ONCE", 1)
    monkeypatch.setattr("fairlead.history.pgsession.PostgresSession.run_many", lambda *_: None)
    assert "table jobs is not equal to its original" in str(run(data, database)["problem"])
