"""Result files on a node: which are collected, what the agent sends of them, and when they are removed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fairlead.agent.result_files import read_results, remove_results, staged_results
from fairlead.agent.spawner.result_copies import Collection, fits, is_safe, write_list
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
    """Collect files of a folder as the task `TASKS`, and write their list."""
    logs = folder.parent / "logs" / "0.0"
    logs.mkdir(parents=True, exist_ok=True)
    found = Collection(str(logs / "7.a.b.0.2"), files, size)
    fd = os.open(folder, os.O_RDONLY)
    found.collect(fd, list(patterns))
    os.close(fd)
    write_list(str(logs / "7.a.b.0.2"), "job", found.files, found.warnings)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    (found / "out" / "deep").mkdir(parents=True)
    for name in ("a.csv", "out/b.csv", "out/deep/c.csv", "out/deep/.hidden", "out/d.txt"):
        (found / name).write_text(name)
    return found


def names(found: Collection) -> list[str]:
    return [name for _, name in found.files]


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
    assert names(found) == expected and found.warnings == []


def test_a_file_that_is_replaced_by_a_link_or_a_fifo_is_not_read(folder: Path) -> None:
    (folder / "a.csv").unlink()
    (folder / "a.csv").symlink_to("/etc/passwd")
    os.mkfifo(folder / "b")
    (folder / "linked").symlink_to(folder / "out")
    found = collect(folder, "a.csv", "b", "linked/*", "linked/**")
    assert names(found) == []
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
        return [part async for part in read_results(str(folder.parent / "logs"), TASKS, 0, files, size)]

    return asyncio.run(story())


def test_what_was_collected_is_sent_and_removed_when_the_server_has_it(folder: Path) -> None:
    collect(folder, "**/*.csv", "none")
    logs = str(folder.parent / "logs")
    assert staged_results(logs) == [TASKS]
    parts = send(folder)
    assert {piece.name: piece.data for part in parts for piece in part.outputs} == {
        name: name.encode() for name in ("a.csv", "out/b.csv", "out/deep/c.csv")
    }
    (collected,) = parts[-1].collected
    assert collected.files == (("a.csv", 5), ("out/b.csv", 9), ("out/deep/c.csv", 14))
    assert collected.warning == "no file matches none"
    remove_results(logs, TASKS)
    assert staged_results(logs) == [] == send(folder) and list(Path(logs).rglob("*.file*")) == []


def test_a_user_that_writes_the_list_gains_nothing(folder: Path) -> None:
    """The folder of logs belongs to the user, who can write anything there."""
    collect(folder, "a.csv")
    logs = folder.parent / "logs" / "0.0"
    (logs / "7.a.b.0.2.file0").unlink()
    (logs / "7.a.b.0.2.file0").symlink_to("/etc/passwd")
    os.mkfifo(logs / "7.a.b.0.2.file1")
    (logs / "7.a.b.0.2.file2").write_bytes(b"x" * 2000)
    (logs / "7.a.b.0.2.file3").write_bytes(b"x")
    os.link("/etc/hostname" if os.stat("/etc/hostname").st_dev == logs.stat().st_dev else logs / "7.a.b.0.2.file3",
            logs / "7.a.b.0.2.file4")  # fmt: skip
    lines = ["job other", *(f"file 1 {name}" for name in ("link", "fifo", "large", "../up", "second"))]
    (logs / "7.a.b.0.2.files").write_text("\n".join([*lines, "file", "nonsense \x1b", ""]))
    (collected,) = send(folder)[-1].collected
    assert collected.files == ()
    assert "large was not sent: it exceeds max_result_files or max_result_bytes" in collected.warning
    (logs / "7.a.b.0.2.files").unlink()
    (logs / "7.a.b.0.2.files").symlink_to("/etc/passwd")
    assert send(folder) == []
