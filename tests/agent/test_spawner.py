"""A spawner alone: a real process, with the messages that an agent sends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Literal

import psutil
import pytest

from fairlead.agent import spawner_link
from fairlead.agent.spawner import guard, processes, result_copies
from fairlead.agent.spawner import ledger as ledger_of_spawner
from fairlead.agent.spawner import tasks as tasks_of_spawner
from fairlead.agent.spawner.cgroups import Limits
from fairlead.agent.spawner.files import LARGE
from fairlead.agent.spawner.frames import Unpacker, pack
from fairlead.agent.spawner.ledger import Ledger, open_files
from fairlead.agent.spawner.processes import MARK
from fairlead.agent.spawner.records import Task
from fairlead.agent.spawner.shared_logs import SMALL, SharedLogs
from fairlead.agent.spawner.spawner import LOCK_TIME
from fairlead.agent.spawner.task_start import CannotStart, Starter, _filled
from fairlead.agent.spawner.tasks import Tasks
from fairlead.agent.spawner_link import end_all, prepare
from fairlead.agent.task_logs import read_log
from fairlead.wire.agent_messages import LogRequest
from tests.until import until

SECONDS = 30.0


class Spawner:
    def __init__(self, directory: Path) -> None:
        self.directory = prepare(directory)
        self.process = spawner_link.start_spawner(directory, directory / "logs")
        self.known: list[Any] = []
        self.note = ""
        self.started: set[Any] = set()
        self.ended: dict[Any, Any] = {}
        self.join()

    def join(self) -> None:
        deadline = monotonic() + SECONDS
        while (found := spawner_link._open(self.directory)) is None:
            assert monotonic() < deadline and self.process.poll() is None
            sleep(0.01)
        self.socket: socket.socket = found
        self.socket.settimeout(SECONDS)
        self._unpacker = Unpacker()
        self._receive()

    def send(self, *frame: Any) -> None:
        self.socket.sendall(pack(frame))

    def launch(
        self, script: str, count: int = 1, number: int = 1, chain: int = 0, slots: int = 0, **more: Any
    ) -> list[Any]:
        spec = (
            ("sh", "-c", script),
            {"PATH": os.environ["PATH"]},
            "/",
            more.get("cpu", 0),
            more.get("memory", 0),
            more.get("output", ""),
            more.get("error", ""),
            more.get("results"),
        )
        meta = (f"job{number}", number, "main", 1)
        self.send("launch", [(meta, spec, list(range(count)), chain, slots > 0, None)], {chain: slots} if slots else {})
        return [(number, "main", 1, index) for index in range(count)]

    def until(self, true: Callable[[], Any]) -> None:
        while not true():
            self._receive()

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18)
        assert data, "the spawner ended"
        for message in self._unpacker.feed(data):
            if message[0] == "state":
                self.known, self.note, _ = message[1:]
                self.ended |= {
                    (m[1], m[2], m[3], i): result for m, i, _, state, result, _ in message[1] if state == "ended"
                }
            else:
                self.started.update(message[1])
                self.ended |= dict(message[2])

    def log(self, key: Any, stream: str = "out") -> Path:
        number, stage, attempt, index = key
        folder = f"{number // 100}.{index // 100}"
        return self.directory / "logs" / folder / f"{number}.{stage}.{index}.{attempt}.{stream}"

    def printed(self, key: Any, stream: Literal["out", "err"] = "out") -> str:
        """Return the output of an ended task, as the agent reads it."""
        number, stage, attempt, index = key
        request = LogRequest(0, number, stage, index, attempt, stream)

        async def read() -> bytes:
            parts = read_log(str(self.directory / "logs"), request, lambda: True)
            found = [part async for part in parts]
            assert not found[-1].problem, found[-1].problem
            return b"".join(part.data for part in found)

        return asyncio.run(read()).decode()


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    # Longer than the path of a socket may be.
    one = Spawner(tmp_path / ("long" * 30) / "spawner-0")
    yield one
    one.process.kill()
    one.process.wait()
    end_all(one.directory.parent, 0.0)
    again = Spawner(one.directory)  # it ends what is left
    end_all(one.directory.parent, 0.0)
    again.process.wait()


def test_a_chain_runs_one_task_per_slot_at_a_time(spawner: Spawner, tmp_path: Path) -> None:
    own = f"{tmp_path}/$FAIRLEAD_INDEX"
    script = f"mkdir {own}; ls -d {tmp_path}/[0-9]* | wc -l; sleep 0.02; rmdir {own}"
    keys = spawner.launch(script, count=20, chain=7, slots=3)
    spawner.until(lambda: len(spawner.ended) == 20)
    seen = [int(spawner.printed(key)) for key in keys]
    assert max(seen) == 3, "one task per slot, and never more"
    assert all(result[:2] == ("exit", 0) for result in spawner.ended.values())


def test_ends_are_kept_until_confirmed_even_without_an_agent(spawner: Spawner) -> None:
    (key,) = spawner.launch("sleep 0.1; exit 5")
    spawner.until(lambda: spawner.started)
    spawner.socket.close()
    sleep(0.2)
    spawner.join()
    spawner.until(lambda: key in spawner.ended)
    assert spawner.ended[key][:2] == ("exit", 5)
    spawner.join()
    assert [entry[3] for entry in spawner.known] == ["ended"]
    spawner.send("confirm", [key])
    spawner.join()
    assert spawner.known == []


def test_a_task_confirmed_twice_in_one_message_is_forgotten_once(spawner: Spawner) -> None:
    (key,) = spawner.launch("true")
    (runs,) = spawner.launch("sleep 1000", number=2)
    spawner.until(lambda: key in spawner.ended and runs in spawner.started)
    spawner.send("confirm", [key, key])
    spawner.join()
    assert [(entry[0][1], entry[3]) for entry in spawner.known] == [(2, "running")]


def test_values_that_fill_a_word_without_end_start_nothing() -> None:
    """40,000 times 100 KB took the memory of the node."""
    variables = {"FAIRLEAD_PARAM_a": "x" * 100_000, "FAIRLEAD_PARAM_b": "y"}
    assert _filled(("echo", "{b} {c} {a"), variables) == ("echo", "y {c} {a")
    with pytest.raises(CannotStart, match="a word of its command has more than 131,072 characters"):
        _filled(("echo", "{a}" * 40_000), variables)


def test_a_killed_spawner_leaves_nothing_running(spawner: Spawner, tmp_path: Path) -> None:
    """The next spawner ends leftover tasks before its first message: ordinary, in another session, and without mark."""
    script = f"""
        case $FAIRLEAD_INDEX in
        0) setsid sleep 1000 & echo $! >{tmp_path}/pid0; wait;;
        1) echo $$ >{tmp_path}/pid1; exec env -i sleep 1000;;
        2) echo $$ >{tmp_path}/pid2; sleep 1000;;
        esac
    """
    keys = spawner.launch(script, count=3)
    spawner.until(lambda: len(spawner.started) == 3)
    files = [tmp_path / f"pid{index}" for index in range(3)]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    sleep(0.1)  # the command without an environment is started
    pids = [int(file.read_text()) for file in files]
    guard = guard_of(spawner)
    os.kill(spawner.process.pid, signal.SIGSTOP)  # otherwise it may fork another guard, which listens for a moment
    os.kill(guard, signal.SIGKILL)
    os.kill(spawner.process.pid, signal.SIGKILL)
    spawner.process.wait()
    assert all(map(psutil.pid_exists, pids))
    spawner.process = spawner_link.start_spawner(spawner.directory, spawner.directory / "logs")
    spawner.join()
    assert not any(alive(pid) for pid in pids)
    assert {key: spawner.ended[key][0] for key in keys} == dict.fromkeys(keys, "lost")


def guard_of(spawner: Spawner) -> int:
    """The process that has the same command: it was forked."""
    one = psutil.Process(spawner.process.pid)
    (guard,) = [child.pid for child in one.children() if child.cmdline() == one.cmdline()]
    return guard


def test_a_spawner_that_is_just_being_started_is_not_taken_for_what_an_earlier_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of the earlier one may have listed the processes before the new one had a session of its own."""
    mark = "0123456789abcdef:"
    list_processes = processes.all_processes
    with subprocess.Popen(["sleep", "1000"], env={MARK: mark}, start_new_session=True) as fresh:

        def before_its_session() -> dict[int, processes.Process]:
            found = list_processes()
            found[fresh.pid].session = found[os.getpid()].session
            return found

        monkeypatch.setattr(processes, "all_processes", before_its_session)
        try:
            assert fresh.pid not in processes.left_over(mark, (), 0.0, time())
        finally:
            fresh.kill()


def test_tasks_of_a_killed_spawner_end_without_a_successor(spawner: Spawner) -> None:
    keys = spawner.launch("setsid sleep 1000 & sleep 1000", count=3)
    spawner.until(lambda: len(spawner.started) == 3)
    processes = psutil.Process(spawner.process.pid).children(recursive=True)
    assert len(processes) >= 4
    spawner.process.kill()
    spawner.process.wait()
    psutil.wait_procs(processes, SECONDS)
    assert not any(map(psutil.Process.is_running, processes)), "and its guard has ended too"
    spawner.process = spawner_link.start_spawner(spawner.directory, spawner.directory / "logs")
    spawner.join()
    assert {key: spawner.ended[key][0] for key in keys} == dict.fromkeys(keys, "lost")


def test_tasks_of_a_stopped_spawner_end_with_their_lease(spawner: Spawner) -> None:
    spawner.launch("sleep 1000", count=3)
    spawner.until(lambda: len(spawner.started) == 3)
    processes = psutil.Process(spawner.process.pid).children(recursive=True)
    now = monotonic()
    spawner.send("lease", now + 1.0, now + 1.5, 1.5, "")
    spawner.send("confirm", [])
    sleep(0.1)
    spawner.process.send_signal(signal.SIGSTOP)
    psutil.wait_procs(processes, SECONDS)
    assert not any(map(psutil.Process.is_running, processes))
    assert monotonic() - now > 1.4
    assert spawner.process.wait(SECONDS) == -signal.SIGKILL, "it starts nothing more when it goes on"


def test_a_stopped_spawner_that_proc_hides_is_ended_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc with hidepid=2 does, since a user's spawner is not dumpable."""
    monkeypatch.setattr(guard, "process_of", lambda pid: None)
    lease = guard.Lease()
    reader, writer = os.pipe()
    with subprocess.Popen(["sleep", "1000"]) as process:
        process.send_signal(signal.SIGSTOP)
        watching = threading.Thread(target=guard._watch, args=(reader, process.pid, lease))
        watching.start()
        try:
            began = monotonic()
            lease.set(began, began, 0.0, "")
            while monotonic() < began + 2 * guard.SILENT:
                lease.beat(monotonic())
                sleep(0.1)
            assert process.poll() is None, "it got the message"
            assert process.wait(SECONDS) == -signal.SIGKILL
            assert monotonic() >= lease.seen + guard.SILENT
        finally:
            process.kill()
            os.close(writer)
            watching.join()
            os.close(reader)


@pytest.mark.parametrize("script", ["exec sleep 1000", "trap '' TERM; while :; do sleep 1; done"])
def test_a_task_that_proc_hides_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Such a task is seen neither as a process nor as a member of its session."""
    monkeypatch.setattr(tasks_of_spawner, "members", lambda tasks, marks: {pid: [] for pid in tasks})
    limits = Limits(f"test-{os.getpid()}")
    starter = Starter(limits, "mark:", SharedLogs(str(tmp_path), "one"), "/", {})
    tasks = Tasks(Ledger(open_files(str(tmp_path / "ledger"))), limits, starter)
    spec = (("/bin/sh", "-c", script), {}, "/", 0, 0, "", "", None)
    tasks.launch([(("job1", 1, "main", 1), spec, [0], 0, False, None)], {})
    tasks.start(1)
    (task,) = tasks.by_key.values()
    sleep(0.2)  # the shell has started its command
    try:
        tasks.stop([(task.key, 0.5)])
        deadline = monotonic() + 5.0
        while tasks.at_work and monotonic() < deadline:
            sleep(0.02)
            tasks.tick()
            tasks.reap()
        assert task.result is not None and task.result[0] == "stopped"
        assert task.result[1] == 128 + (signal.SIGKILL if "trap" in script else signal.SIGTERM)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(task.pid, signal.SIGKILL)
        limits.close()


def test_an_end_is_reported_when_its_files_are_collected(spawner: Spawner, tmp_path: Path) -> None:
    results = ((str(tmp_path)[1:] + "/r-%a-%r-%j",), 10, 1000)
    script = f"echo $FAIRLEAD_INDEX >{tmp_path}/r-$FAIRLEAD_INDEX-1-job1; exit $FAIRLEAD_INDEX"
    keys = spawner.launch(script, count=2, results=results)
    spawner.until(lambda: len(spawner.ended) == 2)
    for index, key in enumerate(keys):
        assert spawner.ended[key][:2] == ("exit", index)
        assert spawner.ended[key][6] == ([f"{str(tmp_path)[1:]}/r-{index}-1-job1"], [])
        log = spawner.log(key)
        assert log.with_suffix(".file0").read_text() == f"{index}\n"
    (other,) = spawner.launch("true", number=2)
    spawner.until(lambda: other in spawner.ended)
    assert len(spawner.ended[other]) == 6


def test_a_stop_ends_collecting_and_the_result_of_the_task_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_copies, "_collect", lambda task, prefix, home: sleep(SECONDS))
    limits = Limits(f"test-{os.getpid()}")
    starter = Starter(limits, "mark:", SharedLogs(str(tmp_path), "one"), "/", {})
    tasks = Tasks(Ledger(open_files(str(tmp_path / "ledger"))), limits, starter)
    spec = (("/bin/sh", "-c", "exit 3"), {}, "/", 0, 0, "", "", (("*",), 10, 1000))
    tasks.launch([(("job1", 1, "main", 1), spec, [0], 0, False, None)], {})
    tasks.start(1)
    (task,) = tasks.by_key.values()

    def work(true: Callable[[], Any]) -> None:
        deadline = monotonic() + SECONDS
        while not true():
            assert monotonic() < deadline
            sleep(0.02)
            tasks.tick()
            tasks.reap()

    work(lambda: tasks._collecting)
    (pid,) = tasks._collecting
    tasks.tick()  # it is no orphan
    assert tasks.at_work and alive(pid)
    tasks.stop([(task.key, 5.0)])
    work(lambda: not tasks.at_work)
    assert task.result is not None and task.result[:2] == ("exit", 3)
    assert task.result[6:] == (([], ["collecting its files was interrupted"]),)
    limits.close()


def test_a_second_spawner_ends_while_the_first_lives(spawner: Spawner) -> None:
    """It does not wait to take over when the first one ends."""
    second = spawner_link.start_spawner(spawner.directory, spawner.directory / "logs")
    began = monotonic()
    assert second.wait(SECONDS) == 3
    assert monotonic() - began < LOCK_TIME
    (key,) = spawner.launch("true")
    spawner.until(lambda: key in spawner.ended)


def test_a_guard_that_was_killed_is_replaced(spawner: Spawner) -> None:
    (key,) = spawner.launch("sleep 1000")
    spawner.until(lambda: key in spawner.started)
    before = guard_of(spawner)
    os.kill(before, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(before) and psutil.Process(spawner.process.pid).children())
    assert guard_of(spawner) != before
    sleep(1.2)  # the search for orphans has run, and this is none
    assert alive(guard_of(spawner))
    assert key not in spawner.ended


def test_a_lease_does_not_end_while_no_server_runs_here(spawner: Spawner, tmp_path: Path) -> None:
    lock = tmp_path / "server.lock"
    with lock.open("w") as server:
        fcntl.flock(server, fcntl.LOCK_SH)
        (key,) = spawner.launch("sleep 1000")
        spawner.until(lambda: key in spawner.started)
        fcntl.flock(server, fcntl.LOCK_UN)
        now = monotonic()
        spawner.send("lease", now + 0.5, now + 0.6, 0.6, str(lock))
        sleep(2.0)
        spawner.join()
        assert [each[3] for each in spawner.known] == ["running"]
        fcntl.flock(server, fcntl.LOCK_SH)
        spawner.until(lambda: key in spawner.ended)
        assert spawner.ended[key][0] == "lost"


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_tasks_end_with_their_lease(spawner: Spawner) -> None:
    polite, stubborn = (
        spawner.launch("sleep 1000", number=1),
        spawner.launch("trap '' TERM; sleep 1000; sleep 1000", number=2),
    )
    (waits,) = spawner.launch("true", number=3, chain=9, slots=1)[:1]
    spawner.until(lambda: len(spawner.started) >= 2)
    now = monotonic()
    spawner.send("lease", now + 0.1, now + 0.5, 0.5, "")
    spawner.until(lambda: {*polite, *stubborn} <= spawner.ended.keys())
    assert monotonic() >= now + 0.4
    assert {spawner.ended[key][0] for key in (*polite, *stubborn)} == {"lost"}
    assert waits in spawner.ended


def test_a_renewed_lease_spares_them(spawner: Spawner) -> None:
    (key,) = spawner.launch("sleep 0.5")
    now = monotonic()
    spawner.send("lease", now + 0.2, now + 0.3, 0.3, "")
    spawner.send("lease", now + 20.0, now + 30.0, 30.0, "")
    spawner.until(lambda: key in spawner.ended)
    assert spawner.ended[key][:2] == ("exit", 0)


def test_what_has_not_started_is_returned_and_the_rest_goes_on(spawner: Spawner, tmp_path: Path) -> None:
    go = tmp_path / "go"
    keys = spawner.launch(f"while ! [ -e {go} ]; do sleep 0.01; done", count=5, chain=3, slots=2)
    spawner.until(lambda: len(spawner.started) == 2)
    spawner.send("return", keys)
    spawner.until(lambda: len(spawner.ended) == 3)
    assert {result[0] for result in spawner.ended.values()} == {"returned"}
    go.touch()
    spawner.until(lambda: len(spawner.ended) == 5)
    assert {spawner.ended[key][0] for key in keys[:2]} == {"exit"}


@pytest.mark.parametrize(
    "loop", ["(while :; do :; done) & echo $! >{file}", "(setsid sh -c 'echo $$ >{file}; while :; do :; done' &)"]
)
def test_a_task_that_goes_on_is_limited_with_its_children(spawner: Spawner, tmp_path: Path, loop: str) -> None:
    """Needs cgroups. In the second case the child has left the task's session, and its parent is gone."""
    script = f"""
        {loop.format(file=tmp_path / "pid")}
        while :; do :; done
    """
    (key,) = spawner.launch(script, cpu=500)
    spawner.until(lambda: key in spawner.started)
    if "CPU is not limited" in spawner.note:
        pytest.skip(spawner.note)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    cgroups = f"/proc/{child.pid}/cgroup"
    until(lambda: "/fairlead-" in Path(cgroups).read_text())
    spawner.send("stop", [(key, 0.0)])
    spawner.until(lambda: key in spawner.ended)
    assert not alive(child.pid)


def descriptors(spawner: Spawner) -> int:
    return len(os.listdir(f"/proc/{spawner.process.pid}/fd"))


def test_tasks_cost_the_spawner_no_descriptors(spawner: Spawner) -> None:
    before = descriptors(spawner)
    keys = spawner.launch("sleep 1000", count=20, cpu=500)
    spawner.until(lambda: len(spawner.started) == 20)
    sleep(0.3)  # by now they are in cgroups, if these are available
    assert descriptors(spawner) <= before + 2
    spawner.send("stop", [(key, 0.0) for key in keys])
    spawner.until(lambda: len(spawner.ended) == 20)


def test_a_spawner_without_descriptors_goes_on_when_it_has_some(spawner: Spawner) -> None:
    """Without descriptors it can neither accept an agent nor list processes, and does not report tasks as gone."""
    pid = spawner.process.pid
    first, second = (spawner.launch("sleep 1000 & sleep 1000", number=number)[0] for number in (1, 2))
    spawner.until(lambda: len(spawner.started) == 2)
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, limit[1]))  # `poll` needs as many as it waits for
    spawner.send("stop", [(first, 0.0)])
    waiting = spawner_link._open(spawner.directory)  # it cannot be accepted
    assert waiting is not None
    sleep(1.0)
    assert first not in spawner.ended, "what is left of it cannot be seen"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    waiting.close()
    spawner.join()
    spawner.until(lambda: first in spawner.ended)
    assert spawner.ended[first][0] == "stopped"
    (third,) = spawner.launch("true", number=4)
    spawner.until(lambda: third in spawner.ended)
    assert spawner.ended[third][:2] == ("exit", 0)
    assert second not in spawner.ended
    assert spawner.process.poll() is None


@pytest.mark.parametrize(("limit", "starts"), [("-S 20", True), ("20", False)])
def test_a_limit_on_descriptors_is_known_at_the_start(tmp_path: Path, limit: str, starts: bool) -> None:
    directory = prepare(tmp_path / "spawner-0")
    run = (
        f"sys.path.append({spawner_link.SOURCE!r}); from fairlead.agent.spawner.spawner import main; "
        "sys.exit(main(*sys.argv[1:]))"
    )
    script = f'ulimit -n {limit}; exec "$0" -I -S -c "$1" "$2" some: "$2"'
    with subprocess.Popen(
        ["sh", "-c", script, sys.executable, f"import sys; {run}", str(directory)], stderr=subprocess.PIPE, text=True
    ) as process:
        if starts:
            deadline = monotonic() + SECONDS
            while not (directory / "socket").exists():
                assert monotonic() < deadline and process.poll() is None
                sleep(0.01)
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] == 64
            end_all(tmp_path, 0.0)
        else:
            assert "LimitNOFILE=" in process.communicate()[1]
    assert process.returncode == (0 if starts else 4)


def test_output_goes_to_files_that_the_stage_names(spawner: Spawner, tmp_path: Path) -> None:
    pattern = f"{tmp_path}/%j-%s-%a-%r-100%%.txt"
    keys = spawner.launch("echo out; echo err >&2", count=2, output=pattern)
    keys += spawner.launch("echo out; echo err >&2", number=2, error=f"{tmp_path}/errors")
    keys += spawner.launch("echo out; echo err >&2", number=3, output=os.devnull, error=f"{tmp_path}/errors")
    os.mkfifo(tmp_path / "pipe")
    wrong = spawner.launch("true", number=4, output=f"{tmp_path}/pipe")
    wrong += spawner.launch("true", number=5, output=f"{tmp_path}/none/file")
    spawner.until(lambda: all(key in spawner.ended for key in keys + wrong))
    assert {spawner.ended[key][:2] for key in keys} == {("exit", 0)}
    assert (tmp_path / "job1-main-1-1-100%.txt").read_text() == "out\nerr\n"
    assert not spawner.log(keys[0]).exists() and not spawner.log(keys[0], "err").exists()
    assert spawner.printed((2, "main", 1, 0)) == "out\n"
    assert (tmp_path / "errors").read_text() == "err\nerr\n"
    assert [spawner.ended[key][0] for key in wrong] == ["failed", "failed"]
    assert (
        spawner.ended[wrong[1]][2]
        == f"its output {tmp_path}/none/file: No such file or directory; create its folder first"
    )


def test_no_folder_has_many_logs(spawner: Spawner) -> None:
    much = f"head -c {SMALL + 1} /dev/zero"
    keys = spawner.launch(much, count=250) + spawner.launch(much, number=250)
    spawner.until(lambda: all(key in spawner.ended for key in keys))
    files = {folder.name: len(list(folder.iterdir())) for folder in (spawner.directory / "logs").glob("*.*")}
    assert files == {"0.0": 201, "0.1": 201, "0.2": 101, "2.0": 3}, "and one that tasks share"


def test_large_logs_are_moved_aside(spawner: Spawner) -> None:
    (key,) = spawner.launch(f"head -c {LARGE + 1000} /dev/zero; while :; do echo more; sleep 0.01; done")
    older = spawner.log(key).with_name(spawner.log(key).name + ".1")
    until(lambda: older.exists() and spawner.log(key).stat().st_size <= LARGE)
    assert older.stat().st_size >= LARGE
    assert until(spawner.log(key).read_bytes).startswith(b"more\n")


TRICKS = {
    "fifo": "mkfifo",
    "link": "ln -s {secret}",
    "second name": "ln {secret}",
    "folder": "mkdir",
    "huge file": "truncate -s 1T",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_a_log_that_its_task_replaced_neither_blocks_nor_reaches_another_file(
    spawner: Spawner, tmp_path: Path, trick: str
) -> None:
    secret = tmp_path / "secret"
    with secret.open("wb") as file:
        file.truncate(LARGE + 1)
    (key,) = spawner.launch(f"sleep 1000; : {tmp_path}")
    spawner.until(lambda: key in spawner.started)
    logs = [spawner.log(key, stream) for stream in ("out", "err")]
    until(logs[1].exists)  # after a tenth of a second
    older = [path.with_name(path.name + ".1") for path in logs]
    for path in (logs[0], *older, spawner.log((2, "main", 1, 0)), spawner.log((2, "main", 1, 0), "err")):
        path.unlink(missing_ok=True)
        subprocess.run(["sh", "-c", f"{trick.format(secret=secret)} {path}"], check=True)
    with logs[1].open("wb") as file:
        file.truncate(LARGE + 1)
    sleep(1.2)  # they are looked at twice a second
    (later,) = spawner.launch("echo fine", number=2)
    spawner.until(lambda: later in spawner.ended)
    if trick != "mkdir":
        assert spawner.ended[later][:2] == ("exit", 0)
        kept = (spawner.directory / "logs" / "0.0" / "spawner-0.shared").read_text()
        assert kept.endswith("fine\n") or spawner.log(later).read_text() == "fine\n"
    assert secret.stat().st_size == LARGE + 1
    assert all(path.lstat().st_blocks < 1 << 17 for path in older)
    assert spawner.process.poll() is None


def test_a_launch_that_is_sent_again_is_started_once(spawner: Spawner, tmp_path: Path) -> None:
    script = f"echo x >>{tmp_path}/runs"
    for _ in range(3):
        spawner.launch(script)
    spawner.until(lambda: spawner.ended)
    spawner.launch(script)
    spawner.launch("true", number=2)
    spawner.until(lambda: len(spawner.ended) == 2)
    assert (tmp_path / "runs").read_text() == "x\n"


def test_what_was_refused_is_not_started_later(spawner: Spawner, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    write = f"echo $FAIRLEAD_INDEX >> {ran}"
    script = f"{write}; exec sleep 600"
    (first,) = spawner.launch(script)
    spawner.until(lambda: first in spawner.started)
    until(lambda: ran.exists() and ran.read_text())
    pid = spawner.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # it cannot write its ledger
    _, second = spawner.launch(script, count=2)
    spawner.until(lambda: second in spawner.ended)
    assert spawner.ended[second][0] == "refused"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    spawner.launch(script, count=2)
    (third,) = spawner.launch(write, number=2)
    spawner.until(lambda: third in spawner.ended)
    assert first not in spawner.ended, "a task that was taken before is not refused when it is sent again"
    assert second not in spawner.started
    assert ran.read_text().split() == ["0", "0"], "the first of each job, once"


def test_a_folder_of_logs_that_cannot_be_made_changes_no_rights_of_later_files(tmp_path: Path) -> None:
    (tmp_path / "0.0").symlink_to("nowhere")
    starter = Starter(Limits("test"), "mark:", SharedLogs(str(tmp_path), "one"), "/", {})
    task = Task((1, "main", 1, 0), ("job1", 1, "main", 1), 0, (("/bin/true",), {}, "/", 0, 0, "", "", None), None)
    before = os.umask(0o022)
    try:
        assert starter.start(task) is not None
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_a_task_is_written_down_before_it_can_start(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    ledger = Ledger(open_files(path))
    limits = Limits("test")
    tasks = Tasks(ledger, limits, Starter(limits, "mark:", SharedLogs(str(tmp_path), "one"), "/", {}))
    spec = (("true",), {}, "/", 0, 0, "", "", None)
    tasks.launch([(("job1", 1, "main", 1), spec, [0], 0, False, None)], {})
    assert tasks.starting
    assert set(Ledger(open_files(path)).tasks) == {(1, "main", 1, 0)}


def test_processes_that_were_noted_before_the_machine_started_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers may belong to other processes by now, which the clock may not show."""
    path = str(tmp_path / "ledger")
    key = (1, "main", 1, 0)
    first = Ledger(open_files(path))
    first.take(("job1", 1, "main", 1), [0], 0)
    first.began([(key, 4711)])
    first.write()
    assert Ledger(open_files(path)).pids == {key: 4711}
    monkeypatch.setattr(ledger_of_spawner, "_boot", lambda: "another start", raising=False)
    again = Ledger(open_files(path))
    assert (set(again.tasks), again.pids) == ({key}, {})
    again.rewrite()
    assert Ledger(open_files(path)).pids == {}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_ledger_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(open_files(str(path)))
    meta = ("job1", 1, "main", 1)
    ledger.take(meta, [0, 1], 0)
    ledger.began([((1, "main", 1, 0), 4711)])
    ledger.write()
    whole = path.stat().st_size
    ledger.end([((1, "main", 1, 0), ("exit", 0, "", 1, 1, 1))])
    ledger.write()
    os.truncate(path, path.stat().st_size - cut)
    assert path.stat().st_size > whole
    again = Ledger(open_files(str(path)))
    assert set(again.tasks) == {(1, "main", 1, 0), (1, "main", 1, 1)}
    assert (again.ended, again.pids) == ({}, {(1, "main", 1, 0): 4711})


def test_a_damaged_ledger_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(open_files(str(path)))
    ledger.take(("job1", 1, "main", 1), [0], 0)
    ledger.write()
    sound = path.stat().st_size
    ledger.take(("job2", 2, "main", 1), [0], 0)
    ledger.write()
    data = bytearray(path.read_bytes())
    for at in range(sound + 4, len(data)):
        data[at] ^= 0xFF
        path.write_bytes(data)
        assert set(Ledger(open_files(str(path))).tasks) >= {(1, "main", 1, 0)}


def test_a_rewritten_ledger_has_the_same_content(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    ledger = Ledger(open_files(path))
    for number in range(50):
        ledger.take((f"job{number}", number, "main", 1), [0, 1, 2], number % 3)
    ledger.began([((7, "main", 1, 0), 4711), ((8, "main", 1, 0), 4712)])
    ledger.end([((8, "main", 1, 0), ("exit", 0, "", 1, 1, 1))])
    ledger.forget([(9, "main", 1, 0), (9, "main", 1, 1), (9, "main", 1, 2)])
    ledger.write()
    plain = Ledger(open_files(path))
    ledger.rewrite()
    reconnected = Ledger(open_files(path))
    for one in (plain, reconnected):
        assert (one.tasks, one.ended, one.pids) == (ledger.tasks, ledger.ended, {(7, "main", 1, 0): 4711})
