"""Result files on a node: which are collected, what the agent sends of them, and when they are removed."""

from __future__ import annotations

import asyncio
import marshal
import mmap
import os
from pathlib import Path

import pytest

from fairlead.agent.result_files import read_results, remove_results
from fairlead.agent.result_lists import ResultLists
from fairlead.agent.spawner.frames import HEAD
from fairlead.agent.spawner.result_copies import MAX_NAME, Collection, fits, is_safe, leave_list
from fairlead.wire.agent_messages import OutputPart, Tasks
from fairlead.wire.result_names import is_safe_name

TASKS = Tasks("job", 7, "a.b", 2, (0, 1))


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.csv", ["a.csv", "a.b.csv"], [".csv", ".a.csv", "a.csvx", "acsv"]),
        (".*", [".a"], ["a"]),
        ("a?c", ["abc"], ["ac", "abbc"]),
        ("[ab]x", ["ax", "bx"], ["cx", "x"]),
        ("[!ab]x", ["cx"], ["ax"]),
        ("[a-c]*z", ["az", "cyz"], ["dz"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[ab", ["[ab"], ["a"]),
        ("*a*b*", ["ab", "xaxbx"], ["ba"]),
        ("a**", ["a", "ab"], ["b"]),
    ],
)
def test_names_match_as_in_a_shell(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [name for name in matching + others if fits(name, pattern)] == matching


@pytest.mark.parametrize(
    ("name", "safe"),
    [("a/b c", True), ("ü", True), ("..", False), ("a/..", False), ("/a", False), ("a//b", False), ("a\n", False),
     ("a" * 701, False), ("\udcff", False), ("", False)],
)  # fmt: skip
def test_both_ends_agree_which_names_are_safe(name: str, safe: bool) -> None:
    assert (is_safe(name), is_safe_name(name)) == (safe, safe)


def collect(folder: Path, *patterns: str, files: int = 10, size: int = 1000) -> Collection:
    """Collect files of a folder as the task `TASKS`, and keep their list."""
    logs = folder.parent / "logs" / "0.0"
    logs.mkdir(parents=True, exist_ok=True)
    found = Collection(str(logs / "7.a.b.0.2"), files, size)
    fd = os.open(folder, os.O_RDONLY)
    found.collect(fd, list(patterns))
    os.close(fd)
    lists(folder).add("ann", (TASKS.job, TASKS.number, TASKS.stage, TASKS.attempt), 0, (found.files, found.warnings))
    return found


def lists(folder: Path) -> ResultLists:
    return ResultLists(folder.parent / "lists", lambda event, fields: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    (found / "out" / "deep").mkdir(parents=True)
    for name in ("a.csv", "out/b.csv", "out/deep/c.csv", "out/deep/.hidden", "out/d.txt"):
        (found / name).write_text(name)
    return found


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*.csv"], ["a.csv"]),
        (["**/*.csv"], ["a.csv", "out/b.csv", "out/deep/c.csv"]),
        (["out/**"], ["out/b.csv", "out/d.txt", "out/deep/c.csv"]),
        (["out/*/c.csv", "./out//b.csv"], ["out/deep/c.csv", "out/b.csv"]),
        (["a.csv", "*.csv", "**"], ["a.csv", "out/b.csv", "out/d.txt", "out/deep/c.csv"]),
        (["out/deep/.hidden"], ["out/deep/.hidden"]),
    ],
)
def test_patterns_find_files_once(folder: Path, patterns: list[str], expected: list[str]) -> None:
    found = collect(folder, *patterns)
    assert found.files == expected and found.warnings == []


def test_a_file_that_is_replaced_by_a_link_or_a_fifo_is_not_read(folder: Path) -> None:
    (folder / "a.csv").unlink()
    (folder / "a.csv").symlink_to("/etc/passwd")
    os.mkfifo(folder / "b")
    (folder / "linked").symlink_to(folder / "out")
    found = collect(folder, "a.csv", "b", "linked/*", "linked/**")
    assert found.files == []
    assert found.warnings == [
        "a.csv was not collected: it is a link",
        "b was not collected: it is not a regular file",
        "no file matches linked/*",
        "no file matches linked/**",
    ]


def test_a_tree_that_is_too_deep_or_too_large_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = folder / "/".join("d" * 40)
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    assert any("is too deep" in text for text in collect(folder, "d/**").warnings)
    monkeypatch.setattr("fairlead.agent.spawner.result_copies.MAX_SEEN", 3)
    assert any("was not searched" in text for text in collect(folder, "**").warnings)


def send(folder: Path, files: int = 10, size: int = 1000) -> list[OutputPart]:
    async def story() -> list[OutputPart]:
        listed = lists(folder).find("ann", TASKS, 0)
        return [part async for part in read_results(str(folder.parent / "logs"), listed, TASKS, 0, files, size)]

    return asyncio.run(story())


def test_what_was_collected_is_sent_and_removed_when_the_server_has_it(folder: Path) -> None:
    collect(folder, "**/*.csv", "none")
    logs = str(folder.parent / "logs")
    assert lists(folder).all() == [TASKS]
    parts = send(folder)
    assert {piece.name: piece.data for part in parts for piece in part.outputs} == {
        name: name.encode() for name in ("a.csv", "out/b.csv", "out/deep/c.csv")
    }
    (collected,) = parts[-1].collected
    assert collected.files == (("a.csv", 5), ("out/b.csv", 9), ("out/deep/c.csv", 14))
    assert collected.warning == "no file matches none"
    remove_results(logs, lists(folder), TASKS, "ann")
    assert lists(folder).all() == [] == send(folder) and list(Path(logs).rglob("*.file*")) == []


def test_files_that_were_taken_before_are_not_reported_as_missing(folder: Path) -> None:
    """The end of a task is reported again if the agent was killed before its spawner forgot the task."""
    found = collect(folder, "a.csv")
    remove_results(str(folder.parent / "logs"), lists(folder), TASKS, "ann")
    lists(folder).add("ann", (TASKS.job, TASKS.number, TASKS.stage, TASKS.attempt), 0, (found.files, []))
    assert send(folder) == []


def test_a_user_that_replaces_the_copies_gains_nothing(folder: Path) -> None:
    """The folder of the copies belongs to the user, who can write anything there."""
    for name in ("link", "fifo", "large", "second", "folder", "sparse"):
        (folder / name).write_text("x")
    found = collect(folder, "link", "fifo", "large", "second", "folder", "sparse")
    prefix = folder.parent / "logs" / "0.0" / "7.a.b.0.2"
    copies = {name: prefix.with_name(f"{prefix.name}.file{number}") for number, name in enumerate(found.files)}
    for name in ("link", "fifo", "folder", "second"):
        copies[name].unlink()
    copies["link"].symlink_to("/etc/passwd")
    os.mkfifo(copies["fifo"])
    copies["folder"].mkdir()
    os.link("/etc/hostname" if os.stat("/etc/hostname").st_dev == prefix.parent.stat().st_dev else copies["large"],
            copies["second"])  # fmt: skip
    copies["large"].write_bytes(b"x" * 2000)
    os.truncate(copies["sparse"], 64 << 30)
    (collected,) = send(folder)[-1].collected
    assert collected.files == ()
    assert "large was not sent: it exceeds max_result_files or max_result_bytes" in collected.warning
    assert "sparse was not sent: it exceeds max_result_files or max_result_bytes" in collected.warning
    assert "'link' was not sent: its copy is missing" in collected.warning


def test_a_list_beside_the_logs_is_not_read(folder: Path) -> None:
    """Names like these ended an agent, kept it from starting, or blocked it for minutes."""
    logs = folder.parent / "logs" / "0.0"
    collect(folder, "a.csv")
    (logs / f"{'9' * 200}.main.0.1.files").write_text("job 1\n")
    (logs / "1.main.0.1.files").write_text("file 1 x\n" * 7_000_000)
    open(os.fsencode(logs) + b"/1.\xff.0.1.files", "wb").close()
    for number in range(300):
        with (logs / f"{number}.other.0.1.files").open("wb") as file:
            file.truncate(64 << 20)
    assert lists(folder).all() == [TASKS]
    assert [collected.files for part in send(folder) for collected in part.collected] == [(("a.csv", 5),)]


def test_lists_of_one_user_do_not_fill_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.agent.result_lists.MAX_WAITING", 1000)
    kept = lists(folder)
    for index in range(3):
        kept.add("ann", ("job", 7, "main", 1), index, (["x" * 500], []))
        kept.add("bob", ("job", 8, "main", 1), index, (["x" * 100], []))
    found = [kept.find("ann", Tasks("job", 7, "main", 1, (0, 3)), index) for index in range(3)]
    assert [len(each.names) if each else None for each in found] == [1, 0, 0]
    assert found[1] is not None and found[1].warnings == [
        "its files were not kept: too many result files of this user wait on the node"
    ]
    assert kept.find("bob", Tasks("job", 8, "main", 1, (0, 3)), 2) is not None
    assert kept.all() == lists(folder).all() == [Tasks("job", 7, "main", 1, (0, 3)), Tasks("job", 8, "main", 1, (0, 3))]
    (folder.parent / "lists/of-ann/0.0/7.main.0.1").write_bytes(b"cut")
    assert lists(folder).all()[0] == Tasks("job", 7, "main", 1, (1, 3))


def test_names_that_are_too_long_for_the_list_are_counted() -> None:
    found = Collection("", 100, 100)
    found.files = [f"{number:0{MAX_NAME}}" for number in range(100)]
    with mmap.mmap(-1, 20 * MAX_NAME) as memory:
        leave_list(found, memory)
        names, warnings = marshal.loads(memory[HEAD:])
    assert (len(names), warnings[-1]) == (12, "only 12 files are listed: their names are too long")
