"""Output of quick tasks, which share files, and of tasks that get files of their own later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

import pytest

from fairlead.agent import spawner_link
from fairlead.agent.spawner import shared_logs
from fairlead.agent.spawner.records import Task
from fairlead.agent.spawner.shared_logs import MAX_PAIRS, SMALL, SharedLogs, path_of
from fairlead.agent.spawner_link import end_all
from fairlead.agent.task_logs import KEEP, read_log, read_outputs, remove_old
from fairlead.wire.agent_messages import LogRequest, OutputRequest, Tasks
from tests.agent.test_spawner import Spawner
from tests.until import until

Stream = Literal["out", "err"]


def task_of(index: int, output: str = "", error: str = "") -> Task:
    spec = (("true",), {}, "/", 0, 0, output, error, None)
    return Task((1, "main", 1, index), ("job1", 1, "main", 1), 0, spec, None)


def printing(shared: SharedLogs, task: Task, out: bytes, err: bytes = b"") -> None:
    """Start a task, as far as its output is concerned, and let it print."""
    pair = shared.take(task)
    assert pair is not None
    for fd, text in zip(pair.files, (out, err), strict=True):
        with open(path_of(fd), "ab") as file:
            file.write(text)


def printed(logs: Path, index: int, stream: Stream = "out", offset: int = 0) -> bytes | None:
    """Return what a task has printed, as the agent reads it; None if nothing is kept of it."""
    request = LogRequest(0, 1, "main", index, 1, stream, offset)

    async def read() -> bytes | None:
        parts = [part async for part in read_log(str(logs), request, lambda: True)]
        return None if parts[-1].problem else b"".join(part.data for part in parts)

    return asyncio.run(read())


def own_files(logs: Path) -> list[str]:
    return sorted(path.name for path in logs.glob("*.*/*") if not path.name.endswith(".shared"))


def test_quick_tasks_share_a_file(tmp_path: Path) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    texts = [(b"out\n", b"err\n"), (b"", b""), (b"", b"1.main.0.1 5 5\n"), (b"x" * SMALL, b"\n")]
    for index, (out, err) in enumerate(texts):
        task = task_of(index)
        printing(shared, task, out, err)
        shared.end(task)
        assert printed(tmp_path, index) is None, "not before it is written, which is before the end is reported"
        shared.write()
    for index, (out, err) in enumerate(texts):
        assert (printed(tmp_path, index), printed(tmp_path, index, "err")) == (out, err)
    assert printed(tmp_path, 3, offset=-10) == b"x" * 10 and printed(tmp_path, 0, offset=2) == b"t\n"
    assert printed(tmp_path, 4) is None
    assert own_files(tmp_path) == [] and len(list(tmp_path.glob("pairs-one/*.out"))) == 1


def test_output_of_many_tasks_is_copied_from_shared_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shared = SharedLogs(str(tmp_path), name)
        for index in range(0, 300, 2) if name == "one" else range(1, 300, 2):
            task = task_of(index)
            printing(shared, task, b"%d\n" % index)
            shared.end(task)
            shared.write()

    async def read() -> dict[int, bytes]:
        asked = OutputRequest(0, Tasks("job1", 1, "main", 1, (0, 300)), True)
        return {out.index: out.data async for part in read_outputs(str(tmp_path), asked) for out in part.outputs}

    assert asyncio.run(read()) == {index: b"%d\n" % index for index in range(300)}


def test_much_output_gets_a_file_of_its_own(tmp_path: Path) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    for index, output in enumerate(("", "", "named")):
        task = task_of(index, error=output)
        printing(shared, task, b"y" * (SMALL + (index != 1)))
        shared.end(task)
        shared.write()
        assert printed(tmp_path, index) == b"y" * (SMALL + (index != 1))
    assert own_files(tmp_path) == ["1.main.0.1.err", "1.main.0.1.out", "1.main.2.1.out"]


def test_a_process_that_is_left_behind_does_not_print_into_the_log_of_another_task(tmp_path: Path) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    first, second = task_of(0), task_of(1)
    printing(shared, first, b"first\n")
    assert first.pair is not None
    with open(path_of(first.pair.files[0]), "ab") as left:
        shared.end(first)
        shared.write()
        printing(shared, second, b"second\n")
        left.write(b"left\n")
    shared.end(second)
    shared.write()
    assert (printed(tmp_path, 0), printed(tmp_path, 1)) == (b"first\nleft\n", b"second\n")


Trick = Callable[[Path], object]


@pytest.mark.parametrize(
    "trick",
    [
        lambda path: path.chmod(0),
        lambda path: path.unlink(),
        lambda path: path.with_name("other").hardlink_to(path),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["mode", "removed", "second name", "fifo", "link", "folder"],
)
def test_a_pair_that_its_task_has_changed_is_given_to_no_other_task(tmp_path: Path, trick: Trick) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    task, later = task_of(0), task_of(1)
    printing(shared, task, b"first\n")
    trick(tmp_path / "pairs-one" / "0.out")
    shared.end(task)
    shared.write()
    printing(shared, later, b"later\n")
    shared.end(later)
    shared.write()
    assert printed(tmp_path, 1) == b"later\n"
    assert b"root:" not in (printed(tmp_path, 0) or b"")


@pytest.mark.parametrize("trick", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_without_a_usable_shared_file_tasks_get_files_of_their_own(tmp_path: Path, trick: Trick) -> None:
    (tmp_path / "0.0").mkdir()
    trick(tmp_path / "0.0" / "one.shared")
    shared = SharedLogs(str(tmp_path), "one")
    assert shared.take(task_of(0)) is None
    assert printed(tmp_path, 0) is None


def test_a_shared_file_that_is_replaced_while_a_task_runs(tmp_path: Path) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    task = task_of(0)
    printing(shared, task, b"text")
    (tmp_path / "0.0" / "one.shared").unlink()
    os.mkfifo(tmp_path / "0.0" / "one.shared")
    shared.end(task)
    shared.write()
    assert printed(tmp_path, 0) == b"text"


@pytest.mark.parametrize("trick", [lambda path: path.write_text(""), lambda path: path.symlink_to("nowhere")])
def test_a_folder_of_logs_that_is_replaced_ends_no_spawner(tmp_path: Path, trick: Trick) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    for index in range(3):
        printing(shared, task := task_of(index), b"text")
        if index == 0:
            (tmp_path / "0.0" / "one.shared").unlink()
            (tmp_path / "0.0").rmdir()
            trick(tmp_path / "0.0")
        shared.end(task)
        shared.write()
    assert printed(tmp_path, 0) is None


def test_a_shared_file_that_is_full_or_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_logs, "MAX_RECORDS", 2)
    shared = SharedLogs(str(tmp_path), "one")
    for index in range(4):
        task = task_of(index)
        if shared.take(task) is None:
            assert index >= 2
            continue
        shared.give_back(task)
        printing(shared, task, b"%d" % index)
        shared.end(task)
        shared.write()
        if index == 0:
            (tmp_path / "0.0" / "one.shared").unlink()
    assert [printed(tmp_path, index) for index in range(4)] == [None, b"1", None, None]


def test_pairs_are_few_and_a_task_without_one_is_refused_none(tmp_path: Path) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    assert sum(shared.take(task_of(index)) is not None for index in range(2 * MAX_PAIRS)) == MAX_PAIRS


@pytest.mark.parametrize("ended", ["no", "noted", "written"])
def test_the_next_spawner_keeps_what_tasks_of_a_killed_one_have_printed(tmp_path: Path, ended: str) -> None:
    """The spawner is killed while tasks run, before it has written their output, and before its ledger has the end."""
    killed = SharedLogs(str(tmp_path), "one")
    tasks = [task_of(index) for index in range(4)]
    for task, text in zip(tasks, (b"a", b"", b"c" * (SMALL + 1), b"d"), strict=True):
        printing(killed, task, text, b"e")
    killed.part(tasks[3])
    if ended != "no":
        for task in tasks:
            killed.end(task)
    if ended == "written":
        killed.write()
    for _ in range(2):  # the next spawner may be killed too
        SharedLogs(str(tmp_path), "one").take_over([task_of(index) for index in range(5)])
        assert [printed(tmp_path, index) for index in range(5)] == [b"a", b"", b"c" * (SMALL + 1), b"d", None]
        assert [printed(tmp_path, index, "err") for index in range(4)] == [b"e"] * 4
    assert not [path.name for path in (tmp_path / "pairs-one").iterdir()]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_an_incomplete_record_is_removed_by_the_next_spawner(tmp_path: Path, cut: int) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    for index in range(2):
        task = task_of(index)
        printing(shared, task, b"0123456789")
        shared.end(task)
        shared.write()
    file = tmp_path / "0.0" / "one.shared"
    os.truncate(file, file.stat().st_size - cut)
    assert (printed(tmp_path, 0), printed(tmp_path, 1)) == (b"0123456789", None)
    again, later = SharedLogs(str(tmp_path), "one"), task_of(2)
    printing(again, later, b"later")
    again.end(later)
    again.write()
    assert [printed(tmp_path, index) for index in range(3)] == [b"0123456789", None, b"later"]


def test_folders_of_pairs_are_not_swept(tmp_path: Path) -> None:
    shared = SharedLogs(str(tmp_path), "one")
    task = task_of(0)
    printing(shared, task, b"")
    shared.end(task)
    shared.write()
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, monotonic() - KEEP))
    remove_old(str(tmp_path))
    assert printed(tmp_path, 0) is None
    assert [path.name for path in tmp_path.rglob("*.out")] == ["0.out"]


# -- with real processes -----------------------------------------------------------------------------------------


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    one = Spawner(tmp_path / "spawner-0")
    yield one
    kill(one)
    restart(one)  # it ends what is left
    end_all(tmp_path, 0.0)
    one.process.wait()


@pytest.fixture
def folder(spawner: Spawner) -> Path:
    return spawner.directory / "logs"


def kill(spawner: Spawner) -> None:
    spawner.process.kill()
    spawner.process.wait()
    spawner.socket.close()


def restart(spawner: Spawner) -> None:
    spawner.process = spawner_link.start_spawner(spawner.directory, spawner.directory / "logs")

    def joined() -> bool:
        try:
            spawner.join()
        except ConnectionResetError:
            return False  # the guard of the killed spawner listened until now
        return True

    until(joined)


def test_a_task_gets_its_own_files_while_it_runs(spawner: Spawner, folder: Path) -> None:
    (key,) = spawner.launch("echo out; echo err >&2; sleep 30")
    (named,) = spawner.launch("echo err >&2; sleep 30", number=2, output=os.devnull)
    until(lambda: spawner.log(key).exists() and spawner.log(key).read_text() == "out\n")
    assert spawner.log(key, "err").read_text() == "err\n"
    spawner.send("stop", [(named, 0.0)])
    spawner.until(lambda: named in spawner.ended)
    assert not spawner.log(named).exists() and not spawner.log(named, "err").exists()


def test_output_of_quick_tasks_is_complete_when_their_end_is_reported(spawner: Spawner) -> None:
    keys = spawner.launch("echo $FAIRLEAD_INDEX; echo e$FAIRLEAD_INDEX >&2", count=100, chain=3, slots=4)
    spawner.until(lambda: len(spawner.ended) == 100)
    spawner.process.kill()
    assert [spawner.printed(key) for key in keys] == [f"{index}\n" for index in range(100)]
    assert [spawner.printed(key, "err") for key in keys] == [f"e{index}\n" for index in range(100)]


def test_a_background_process_writes_on_into_the_log_of_its_task(spawner: Spawner) -> None:
    (key,) = spawner.launch("echo first; setsid sh -c 'while :; do echo more; sleep 0.01; done' & sleep 0.05")
    (later,) = spawner.launch("echo later", number=2)
    spawner.until(lambda: {key, later} <= spawner.ended.keys())
    assert spawner.printed(later) == "later\n"
    assert set(spawner.printed(key).split()) <= {"first", "more"}


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_what_a_task_has_printed_survives_its_spawner(spawner: Spawner, folder: Path, pause: float) -> None:
    (key,) = spawner.launch("echo begun; sleep 30")

    def is_printed() -> bool:
        return any(path.stat().st_size for path in (*folder.glob("pairs-*/*.out"), *folder.glob("*.*/*.out")))

    until(is_printed)
    sleep(pause)
    kill(spawner)
    restart(spawner)
    assert spawner.ended[key][0] == "lost"
    assert spawner.printed(key) == "begun\n"


def test_spawners_that_are_killed_at_any_time_lose_no_output(spawner: Spawner) -> None:
    """A task whose end was reported has all of its output; a lost task has what it had printed, or nothing."""
    for number in range(1, 9):
        keys = spawner.launch("echo $FAIRLEAD_INDEX", count=300, number=number, chain=number, slots=8)
        until_ended = 20 * number
        spawner.until(lambda least=until_ended: len(spawner.ended) >= least)  # type: ignore[misc]
        kill(spawner)
        restart(spawner)
        assert all(key in spawner.ended for key in keys)
        for key in keys:
            if spawner.ended[key][0] == "exit":
                assert spawner.printed(key) == f"{key[3]}\n"
        spawner.send("confirm", list(spawner.ended))
        spawner.ended.clear()
