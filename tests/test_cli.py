"""The command line as people and scripts use it: what it prints, where, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer import Context, Typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from fairlead import __version__
from fairlead.cli.input_files import MAX_BYTES, Unreadable, read_document
from fairlead.cli.main import PANELS, app, name_of, narrow_app
from fairlead.core.changes import NodeMoved
from fairlead.core.config import parse_config
from fairlead.core.dump import dump, load
from fairlead.core.settings import PartitionSettings
from fairlead.journal import SqliteJournal
from fairlead.journal.codec import encode, stream_of
from fairlead.journal.snapshot import make_snapshot, renew
from fairlead.server.failure import checked_config
from fairlead.testing import World
from fairlead.views.config_document import config_view

STREAM = stream_of("default")
runner = CliRunner()


def run(*arguments: object) -> Result:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the real program in a process of its own."""
    script = Path(sys.executable).with_name("fairlead")
    return subprocess.run([str(script), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


# -- the program -------------------------------------------------------------------------------------------------


def test_version_and_help() -> None:
    assert program("--version").stdout == f"fairlead {__version__}\n"
    shown = program("--help")
    assert shown.returncode == 0
    for command in ("demo", "journal", "config", "simulate"):
        assert command in shown.stdout


def test_commands_are_shown_by_task() -> None:
    shown = [line.split() for line in program("--help").stdout.splitlines()]
    titles = [" ".join(words[1:-1]) for words in shown if words and words[0].startswith("╭")]
    assert titles == ["Options", *PANELS]
    page = (Path(__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = [
        re.findall(r"`([a-z-]+)`", line.partition("|")[2].partition("|")[2])
        for line in page.splitlines()
        if "| `" in line
    ]
    assert [*PANELS.values()] and rows[: len(PANELS)] == [
        [name_of(entry) for entry in panel] for panel in PANELS.values()
    ]
    assert [name_of(entry) for panel in PANELS.values() for entry in panel] == commands_of(app)


def test_no_help_text_loses_words_in_brackets() -> None:
    assert "'fairlead[otel]'" in program("up", "--help").stdout


@pytest.mark.parametrize(("wrong", "meant"), [("pss", "ps"), ("sbmit", "submit"), ("nodes", "node")])
def test_a_misspelt_command_is_answered_by_the_nearest(wrong: str, meant: str) -> None:
    assert f"Did you mean '{meant}'" in program(wrong).stderr


def commands_of(some: Typer) -> list[str]:
    group = get_command(some)
    assert isinstance(group, TyperGroup)
    return group.list_commands(Context(group))


def test_a_call_builds_only_its_command() -> None:
    every = commands_of(app)
    assert len(every) > 20
    for name in every:
        assert commands_of(narrow_app([name, "--json"])) == [name]
    for words in ([], ["--help"], ["sbmit"]):
        assert commands_of(narrow_app(words)) == every


def test_help_is_fast() -> None:
    """Nothing heavy is imported before a command needs it."""
    code = "import sys, fairlead.cli; print(*(name for name in sys.modules if name.startswith(('fairlead.', 'numpy'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {name.split(".")[1] for name in done.stdout.split()} == {"cli"}


def test_demo() -> None:
    done = program("demo")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("nonsense",), ("journal", "verify"), ("config", "check", "--nonsense", "x")])
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = program(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


# -- journal verify ----------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with two partitions, one of them with snapshots and pruned."""
    path = tmp_path / "journal"
    with SqliteJournal(path, synchronous="off") as journal:
        w = World({"partitions": {"default": {}, "east": {}}}, journal=journal)
        w.nodes(4, cpu=4, gpu=1)
        for number in range(30):
            w.submit(name=f"j{number}", stages=[{"count": 4, "resources": {"cpu": 1}, "duration": 5}])
            w.advance(3)
            if number in (10, 20):
                renew(path, "default")
    return path


def verify_json(path: Path, code: int = 0) -> dict[str, Any]:
    result = run("journal", "verify", "--json", path)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["ok"], found["file"]) == (code == 0, str(path))
    return found


def test_verify(path: Path) -> None:
    done = program("journal", "verify", path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["cluster", STREAM, stream_of("east")]
    assert all(": sound, " in line and "digest " in line for line in lines)
    assert "snapshots" in lines[1] and "last cycle 1970-01-01T00:01:" in lines[1]


def test_verify_json(path: Path) -> None:
    cluster, default, _ = verify_json(path)["streams"]
    with SqliteJournal(path, read_only=True) as journal:
        assert default["last"] == journal.last(STREAM)
        snapshot = journal.snapshot(STREAM)
    assert snapshot is not None and default["snapshots"][1] == snapshot.seq
    assert default["records"] == default["last"] - default["snapshots"][0]  # the rest is pruned
    assert (cluster["records"], cluster["time"], cluster["problem"]) == (1, None, "")


def test_verify_writes_nothing(path: Path) -> None:
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    verify_json(path)
    after = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.name in before}
    assert after == before


def test_verify_beside_a_writer(path: Path) -> None:
    with SqliteJournal(path, synchronous="off") as journal:
        epoch = journal.reign(STREAM)
        journal.append(STREAM, epoch, journal.last(STREAM) + 1, encode(10**9, []))
        last = journal.last(STREAM)
        assert verify_json(path)["streams"][1]["last"] == last


def test_verify_an_empty_journal(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "j").close()
    result = run("journal", "verify", tmp_path / "j")
    assert (result.exit_code, "sound, and empty" in result.stdout) == (0, True)
    assert verify_json(tmp_path / "j")["streams"] == []


def alter(path: Path, sql: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        assert file.execute(sql, values).rowcount == 1


def damaged(path: Path, *said: str) -> None:
    """Check that the damage is found and named, and that the other streams are checked nevertheless."""
    result = run("journal", "verify", path)
    assert result.exit_code == 1
    assert result.stderr.startswith("fairlead: error: ")
    for each in said:
        assert each in result.output
    assert f"{STREAM}: DAMAGED: " in result.stdout and f"damaged: {STREAM}" in result.stderr
    assert "cluster: sound" in result.stdout and f"{stream_of('east')}: sound" in result.stdout
    streams = verify_json(path, 1)["streams"]
    assert [bool(stream["problem"]) for stream in streams] == [False, True, False]


def test_an_altered_record(path: Path) -> None:
    alter(path, "UPDATE records SET payload = substr(payload, 2) WHERE stream = ? AND seq = 60", STREAM)
    damaged(path, "record 60 does not match its digest")


def test_a_missing_record(path: Path) -> None:
    alter(path, "DELETE FROM records WHERE stream = ? AND seq = 60", STREAM)
    damaged(path, "record 60 is missing")


@pytest.mark.parametrize("newest", [True, False])
def test_an_altered_snapshot(path: Path, newest: bool) -> None:
    """The older snapshot is checked too, though a recovery would begin with the newest."""
    seq = verify_json(path)["streams"][1]["snapshots"][newest]
    beside = path.with_name("journal-snapshots")
    alter(beside, "UPDATE snapshots SET payload = substr(payload, 2) WHERE seq = ?", seq)
    damaged(path, f"snapshot {seq} of {STREAM} is altered")


def test_a_snapshot_of_another_state(path: Path) -> None:
    seq = verify_json(path)["streams"][1]["last"]
    make_snapshot(path, "default")
    with SqliteJournal(path, read_only=True) as journal:
        snapshot = journal.snapshot(STREAM)
        assert snapshot is not None
        state = load(snapshot.payload)
        state.counters.job += 1
        journal.save_snapshot(STREAM, seq, dump(state))
    damaged(path, f"snapshot {seq} of {STREAM}", "not the state that the records lead to")


def append(path: Path, payload: bytes) -> int:
    with SqliteJournal(path) as journal:
        seq = journal.last(STREAM) + 1
        journal.append(STREAM, journal.reign(STREAM), seq, payload)
    return seq


def test_a_record_that_does_not_follow(path: Path) -> None:
    seq = append(path, encode(10**12, [NodeMoved(99, "lost")]))
    damaged(path, f"record {seq} of {STREAM}", "does not follow from the records before it")


def test_a_record_of_another_form(path: Path) -> None:
    seq = append(path, msgspec.msgpack.encode((1, 5, [["no such change"]])))
    damaged(path, f"record {seq} of {STREAM}", "not a record of format 1")


def test_a_record_of_a_newer_format(path: Path) -> None:
    seq = append(path, msgspec.msgpack.encode((2, "later")))
    damaged(path, f"record {seq} of {STREAM}", "format 2 is newer than 1")


def test_a_record_from_the_past(path: Path) -> None:
    seq = append(path, encode(3, []))
    damaged(path, f"record {seq} of {STREAM}", "time is before")


def test_a_cluster_log_that_is_none(path: Path) -> None:
    with SqliteJournal(path) as journal:
        journal.append("cluster", journal.reign("cluster"), 2, b"\xc1")
    result = run("journal", "verify", path)
    assert result.exit_code == 1
    assert "cluster: DAMAGED" in result.stdout and f"{STREAM}: sound" in result.stdout


def test_a_broken_file(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    result = run("journal", "verify", path)
    assert result.exit_code == 1
    assert str(path) in result.stderr


def test_files_that_are_no_journals(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a journal\n" * 1000)
    other = tmp_path / "other.db"
    alter_other = sqlite3.connect(other)
    alter_other.execute("CREATE TABLE t (a)")
    alter_other.close()
    for file, said in ((text, "not a database"), (other, "not a file of a Fairlead journal")):
        result = run("journal", "verify", file)
        assert result.exit_code == 1
        assert str(file) in result.stderr and said in result.stderr
        assert verify_json(file, 1)["problem"]
    assert text.read_text().startswith("not a journal")


def test_no_such_journal(tmp_path: Path) -> None:
    for name, said in ((tmp_path / "none", "does not exist"), (tmp_path, "is a directory")):
        done = program("journal", "verify", name)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"fairlead: error: {name} {said}; " + done.stderr.partition("; ")[2]
    assert not (tmp_path / "none").exists()


def test_a_journal_that_is_gone(path: Path) -> None:
    """Its head file still exists, so the name is not wrong."""
    path.unlink()
    result = run("journal", "verify", path)
    assert result.exit_code == 1
    assert "missing or empty" in result.stderr


# -- config check ------------------------------------------------------------------------------------------------

CONFIG = """
partitions:
  default:
    starving_after: 30min
    requestors:
      - {match: "^ci-", queue: root.ci}
    queues:
      root:
        ml: {share: 60, guarantee: {gpu: 8}, submit: ["@ml"], users: {"*": {limit: {gpu: 16}}}}
        ci: {share: 30, order: fair, max_jobs: 500, limit: {memory: 1.5Gi, cpu: 250m}}
    pools:
      gpu: {node: {cpu: 32, memory: 256Gi, gpu: 8}, max: 10, idle_for: 1h, provider: {command: [./mycloud]}}
"""


def check(tmp_path: Path, text: str | bytes, code: int = 1) -> Result:
    file = tmp_path / "fairlead.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.monotonic()
    result = run("config", "check", file)
    assert time.monotonic() - began < 10
    assert result.exit_code == code, result.output
    if code:
        assert result.stdout == "" and result.stderr.startswith(f"fairlead: error: {file}")
        assert len(result.stderr.splitlines()) == 1
    return result


def test_a_configuration_in_order(tmp_path: Path) -> None:
    shown = check(tmp_path, CONFIG, 0).stdout
    first, _, rest = shown.partition("\n")
    assert first.endswith("valid, 1 partition; settings that are not shown have their defaults")
    # The output is a valid configuration, and the same one.
    assert parse_config(yaml.safe_load(rest)) == parse_config(yaml.safe_load(CONFIG))
    assert "starving_after: 30min" in rest and "lease" not in rest


def test_the_same_as_json(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    done = program("config", "check", "--json", file)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found.pop("ok"), found.pop("file")) == (True, str(file))
    assert found["partitions"]["default"]["lease"] == "60s"  # with the defaults
    assert parse_config(found) == parse_config(yaml.safe_load(CONFIG))


@pytest.mark.parametrize("defaults", [True, False])
def test_all_settings_come_back(defaults: bool) -> None:
    """Every setting, also a new one, is set to another value than its default."""
    numbers = {"held_nodes_percent": 7, "rebalance_threshold": 8, "unit": "slots", "place": "spread", "fence": "none"}
    numbers["min_runtime"] = 9
    settings: dict[str, Any] = {}
    for field in msgspec.structs.fields(PartitionSettings):
        if field.name in numbers:
            settings[field.name] = numbers[field.name]
        elif isinstance(field.default, bool):
            settings[field.name] = not field.default
        elif isinstance(field.default, int):
            settings[field.name] = 123
    settings["queues"] = {"root": {"scale_first": False, "preemptible": False, "a": {"b": {"groups": {"g": {}}}}}}
    settings["pools"] = {
        "p": {"node": {"cpu": 1}, "min": 1, "min_idle": 2, "cost": 5, "idle_for": 77, "min_free": {"cpu": 3}}
    }
    configs = parse_config({"partitions": {"one": settings, "two": {}}})
    assert parse_config(config_view(configs, defaults)) == configs


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "{}"):
        assert "default:" in check(tmp_path, text, 0).stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partitions: {default: {leese: 5s}}", "partitions.default.leese: "),
        ("partitions: {default: {lease: soon}}", "partitions.default.lease: "),
        ("partitions: {default: {queues: {root: {a: {share: -1}}}}}", "partitions.default.queues.root.a.share: "),
        ("partitions: {default: {pools: {p: {}}}}", "partitions.default.pools.p.node: "),
        ("partitions: {default: {requestors: [{match: '(', queue: root.default}]}}", "requestors[0].match: "),
        ("partitions: {}", "partitions: "),
        ("[1, 2]", "configuration"),
        ("just text", "configuration"),
        ("partitions: {1: {}}", "partitions"),
        ("partitions: {default: {lease: 2024-01-01}}", "partitions.default.lease: "),
        ("partitions: {default: {lease: .nan}}", "partitions.default.lease: "),
        ("partitions: {default: !!set {a, b}}", "partitions.default"),
        ("partitions: {default: {lease: !!binary aGVsbG8=}}", "partitions.default.lease"),
    ],
)
def test_the_key_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    assert said in check(tmp_path, text).stderr


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("partitions:\n  default: {lease: 5s\n", 3, "not YAML"),
        ("a:\n\tb: 1\n", 2, "not YAML"),
        ("a: &x 1\nb: *y\n", 2, "undefined alias"),
        ("partitions:\n  default: {}\n  default: {}\n", 3, "'default' is twice"),
        ("a: &x\n  b: *x\n", 2, "contains itself"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "not YAML"),
        ("a: 1\n--- \nb: 2\n", 2, "not YAML"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        ("[" * 500, 1, "levels deep"),
        ("[" * 100_000, 1, "levels deep"),
        ("\n".join(" " * at + "a:" for at in range(300)), None, "levels deep"),
    ],
)
def test_the_line_that_is_wrong(tmp_path: Path, text: str | bytes, line: int | None, said: str) -> None:
    shown = check(tmp_path, text).stderr
    assert said in shown
    if line is not None:
        assert f"fairlead.yaml:{line}: " in shown


@pytest.mark.parametrize(
    "text", [b"a: \x00", b"a: \x07", "a: " + "1" * 5000, "a: 2024-99-99", "a: !!int x", "? [a]\n: 1", "\ufeffa: b: c"]
)
def test_odd_values(tmp_path: Path, text: str | bytes) -> None:
    check(tmp_path, text)


def bomb(levels: int, width: int, merge: bool) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for level in range(1, levels):
        many = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{many}]}}" if merge else f"[{many}]"))
    return "\n".join(lines)


@pytest.mark.parametrize("merge", [True, False])
def test_bombs(tmp_path: Path, merge: bool) -> None:
    assert "values, with its aliases followed" in check(tmp_path, bomb(20, 9, merge)).stderr


def test_a_bomb_of_queues(tmp_path: Path) -> None:
    queues = "q: &a0 {}\n" + "".join(
        f"q{level}: &a{level} {{{', '.join(f'c{at}: *a{level - 1}' for at in range(9))}}}\n" for level in range(1, 15)
    )
    check(tmp_path, queues + "partitions: {default: {queues: {root: *a14}}}\n")


def test_anchors_may_be_used(tmp_path: Path) -> None:
    text = "partitions:\n  a: &a {lease: 27s, chain: 1s}\n  b: *a\n  c: {<<: *a, lease: 29s}\n"
    shown = check(tmp_path, text, 0).stdout
    assert "3 partitions" in shown
    found = yaml.safe_load(shown.partition("\n")[2])["partitions"]
    assert [found[name]["lease"] for name in "abc"] == ["27s", "27s", "29s"]
    assert found["c"]["chain"] == "1s"


def test_a_large_file(tmp_path: Path) -> None:
    check(tmp_path, "# comment\n" * (MAX_BYTES // 10), 0)
    assert "larger than 1,000,000 bytes" in check(tmp_path, "# comment\n" * (MAX_BYTES // 10) + "#").stderr


def test_errors_as_json(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for text, expected in (
        ("partitions: {default: {leese: 5s}}", {"field": "partitions.default.leese"}),
        ("a: 1\nb: }", {"line": 2}),
    ):
        file.write_text(text + "\n")
        result = run("config", "check", file, "--json")
        assert (result.exit_code, result.stderr) == (1, "")
        found = json.loads(result.stdout)
        assert found.pop("problem")
        assert {key: found[key] for key in ("ok", "file", *expected)} == {"ok": False, "file": str(file), **expected}


def test_no_such_configuration(tmp_path: Path) -> None:
    for name, said in ((tmp_path / "none.yaml", "does not exist"), (tmp_path, "is a directory")):
        result = run("config", "check", name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{name} {said}" in result.stderr


def test_both_loaders_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libyaml the slower loader gives the same result."""
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    assert checked_config(read_document(file), False) == checked_config(yaml.safe_load(CONFIG), False)
    for text in (bomb(20, 9, True), "[" * 500, "a: &x\n  b: *x\n", "a: [\n"):
        file.write_text(text)
        with pytest.raises(Unreadable):
            read_document(file)
