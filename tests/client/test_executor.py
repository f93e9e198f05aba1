"""Functions on the cluster: calls through workers, what becomes of them, and attacks on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client import Client, NeverRuns, Problem
from fairlead.client.executor import Lost
from fairlead.client.function_worker import CALL, LISTENS, SIZE, Forged, Link
from tests.live import SECONDS, Up
from tests.until import until

SMALL = {"cpu": 0.1}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    found = Up(tmp_path_factory.mktemp("executor") / "data")
    found.until("node", "list", said="box")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.url, up.token) as found:
        yield found


@pytest.fixture
def executor(client: Client) -> Iterator[fairlead.Executor]:
    with fairlead.Executor(client, resources=SMALL, max_workers=2) as found:
        yield found


def jobs_named(client: Client, name: str) -> list[str]:
    """Return the jobs that are not over."""
    return [job.id for job in client.jobs(name=name) if not job.over]


# -- calls ---------------------------------------------------------------------------------------------------------


def test_results_and_errors_come_back(executor: fairlead.Executor) -> None:
    def divide(a: int, b: int) -> float:
        print("this goes to the log of the worker")
        return a / b

    assert executor.submit(divide, 6, b=3).result(SECONDS) == 2.0
    failed = executor.submit(divide, 1, 0)
    with pytest.raises(ZeroDivisionError) as raised:
        failed.result(SECONDS)
    assert "divide" in str(raised.value.__cause__)
    assert executor.submit(os.getpid).result(SECONDS) != os.getpid()


def test_many_calls_share_a_few_tasks(client: Client) -> None:
    with fairlead.Executor(client, resources=SMALL, max_workers=2, name="shared") as executor:
        calls = [executor.submit(pow, 2, number) for number in range(300)]
        assert {call.result(SECONDS) for call in as_completed(calls, SECONDS)} == {2**number for number in range(300)}
    (job,) = client.jobs(name="shared")
    assert client.wait(job.id, SECONDS).state == "succeeded"
    assert len(list(client.tasks(job.id))) <= 2


def test_map(executor: fairlead.Executor) -> None:
    assert list(executor.map(lambda a, b: a + b, range(10), range(10), chunksize=4)) == list(range(0, 20, 2))
    assert list(executor.map(abs, (-number for number in range(50)), timeout=SECONDS)) == list(range(50))
    with pytest.raises(ValueError, match="chunksize must be at least 1, not -1"):
        executor.map(abs, [1], chunksize=-1)
    with pytest.raises(TimeoutError):
        next(executor.map(time.sleep, [600], timeout=0.5))


def test_large_objects_go_both_ways(executor: fairlead.Executor) -> None:
    data = os.urandom(30_000_000)
    assert executor.submit(lambda given: given[::-1], data).result(SECONDS) == data[::-1]


def test_with_asyncio_and_the_functions_of_futures(executor: fairlead.Executor) -> None:
    async def work() -> list[int]:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(executor, abs, -number) for number in range(5))))

    assert asyncio.run(work()) == list(range(5))
    slow, quick = executor.submit(time.sleep, 600), executor.submit(abs, -1)
    done, not_done = wait([slow, quick], SECONDS, FIRST_COMPLETED)
    assert (done, not_done) == ({quick}, {slow})
    assert slow.cancel()


def test_a_module_beside_the_program_is_found(up: Up, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "hmac.py").write_text("raise SystemExit('a file of the folder was imported')\n")
    (tmp_path / "sub").mkdir()
    program = tmp_path / "sub" / "program.py"
    program.write_text(
        "import sys\nsys.path.append(sys.argv[1])\nimport fairlead, beside\n"
        "with fairlead.Executor(resources={'cpu': 0.1}) as executor:\n"
        "    print(executor.submit(beside.twice, 21).result(60))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env=up.environment,
        cwd=tmp_path / "sub",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr.decode()


def test_a_module_that_the_other_interpreter_lacks_is_named(executor: fairlead.Executor, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def nothing():\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]

        (tmp_path / "only_here.py").unlink()
        with pytest.raises(ModuleNotFoundError, match=r"only_here.*python.* runs the calls, and needs the modules"):
            executor.submit(only_here.nothing).result(SECONDS)
    finally:
        sys.path.remove(str(tmp_path))


def test_workers_without_calls_end(client: Client) -> None:
    with fairlead.Executor(client, resources=SMALL, name="idle", idle=0.2) as executor:
        first = executor.submit(os.getpid).result(SECONDS)
        until(lambda: not jobs_named(client, "idle"))
        assert executor.submit(os.getpid).result(SECONDS) != first


def test_workers_of_a_client_that_died_end(up: Up, client: Client) -> None:
    program = (
        "import fairlead, os, time\n"
        "executor = fairlead.Executor(resources={'cpu': 0.1}, name='orphan', idle=0.5)\n"
        "executor.submit(abs, -1).result(60)\ntime.sleep(0.5)\nprint('called', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=up.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "called\n"
        process.kill()
    until(lambda: not jobs_named(client, "orphan"), seconds=200)  # it is long only if the result was not seen


# -- calls that end otherwise --------------------------------------------------------------------------------------


def started(folder: Path) -> Callable[[], int]:
    """Return a function that waits until a call has written its process id, and returns that."""
    return lambda: int(until(lambda: (folder / "pid").exists() and (folder / "pid").read_text()))


def sleep_in(folder: Path) -> None:
    (folder / "pid.new").write_text(str(os.getpid()))
    (folder / "pid.new").rename(folder / "pid")
    time.sleep(600)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_call_that_runs_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    with fairlead.Executor(client, resources=SMALL, max_workers=1) as executor:
        slow = executor.submit(sleep_in, tmp_path)
        pid = started(tmp_path)()
        assert slow.cancel() and slow.cancelled()
        assert executor.submit(abs, -1).result(SECONDS) == 1  # by the same worker
        until(lambda: is_gone(pid))


def test_a_call_that_is_killed_with_its_job_says_so(executor: fairlead.Executor, client: Client) -> None:
    slow = executor.but(name="other").submit(time.sleep, 600)
    until(lambda: slow.job)
    client.kill(slow.job)  # type: ignore[attr-defined]
    with pytest.raises(Lost, match="killed"):
        slow.result(SECONDS)


def end_process(folder: Path, calls: int) -> int:
    """End the process in all calls but the last one."""
    count = len(list(folder.iterdir())) + 1
    (folder / str(count)).touch()
    if count < calls:
        os.kill(os.getpid(), signal.SIGSEGV)
    return count


def test_a_process_that_ends_uses_a_try(executor: fairlead.Executor, tmp_path: Path) -> None:
    with pytest.raises(Lost, match=r"its process ended with signal 11 \(SIGSEGV\), in task 0 of job \d+"):
        executor.submit(end_process, tmp_path, 9).result(SECONDS)
    with pytest.raises(Lost, match="its process ended with exit code 7"):
        executor.submit(os._exit, 7).result(SECONDS)
    assert executor.but(tries=3).submit(end_process, tmp_path, 4).result(SECONDS) == 4


def fail_twice(folder: Path) -> int:
    count = len(list(folder.iterdir())) + 1
    (folder / str(count)).touch()
    if count < 3:
        raise LookupError(count)
    return count


def test_a_function_that_raises_uses_a_try(executor: fairlead.Executor, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    with pytest.raises(LookupError, match="2"):
        executor.but(tries=2).submit(fail_twice, tmp_path / "one").result(SECONDS)
    assert executor.but(tries=3).submit(fail_twice, tmp_path / "two").result(SECONDS) == 3


def test_a_time_limit_is_that_of_a_call(executor: fairlead.Executor) -> None:
    limited = executor.but(time_limit=1)
    slow = limited.submit(time.sleep, 600)
    assert limited.submit(abs, -1).result(SECONDS) == 1
    with pytest.raises(Lost, match="it was stopped at its time limit"):
        slow.result(SECONDS)
    with pytest.raises(TypeError, match="time_limit is the number of seconds that a call may take, not '1h'"):
        executor.but(time_limit="1h")


def test_calls_of_a_lost_worker_run_again(client: Client, tmp_path: Path) -> None:
    with fairlead.Executor(client, resources=SMALL, max_workers=1, name="requeued") as executor:
        calls = [executor.submit(sleep_in, tmp_path), *(executor.submit(abs, -number) for number in range(3))]
        first = started(tmp_path)()
        (tmp_path / "pid").unlink()
        client.requeue(calls[0].job)  # type: ignore[attr-defined]
        second = started(tmp_path)()
        assert second != first
        assert calls[0].cancel()
        assert [call.result(SECONDS) for call in calls[1:]] == [0, 1, 2]


def test_calls_outlast_a_server_that_is_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    up = Up(tmp_path / "data", "--port", str(port), "--name", "box", "--resource", "cpu=4")
    try:
        up.until("node", "list", said="box")
        calls_of = tmp_path / "calls"
        calls_of.mkdir()

        def note(number: int) -> int:
            with (calls_of / str(number)).open("a") as file:
                file.write("x")
            time.sleep(0.01)
            return number

        with Client(up.url, up.token) as client, fairlead.Executor(client, resources=SMALL, max_workers=2) as executor:
            calls = [executor.submit(note, number) for number in range(400)]
            for done in (50, 200):
                until(lambda done=done: sum(call.done() for call in calls) >= done)  # type: ignore[misc]
                up.process.kill()
                up.process.wait()
                up.start()
            assert [call.result(SECONDS) for call in calls] == list(range(400))
        assert {file.read_text() for file in calls_of.iterdir()} == {"x"}
    finally:
        up.close()


def test_calls_that_can_never_run_are_warned_of(executor: fairlead.Executor) -> None:
    with pytest.warns(NeverRuns, match="no node has a GPU"):
        waits = executor.but(resources={"gpu": 1}).submit(len, "")
        until(lambda: waits.job)
    assert waits.cancel()


def test_calls_that_are_refused(executor: fairlead.Executor, client: Client) -> None:
    with pytest.raises(Problem, match="there is no queue"):
        executor.but(queue="root.none").submit(len, "x").result(SECONDS)
    with pytest.raises(TypeError, match="a job has no field cpus; write resources="):
        fairlead.Executor(client, cpus=2)
    with pytest.raises(TypeError, match="an executor has no field array"):
        executor.but(array=3)
    with pytest.raises(ValueError, match="max_workers must be greater than 0, not 0"):
        fairlead.Executor(client, max_workers=0)


def test_an_interpreter_that_is_not_there_is_an_error(client: Client) -> None:
    why = r"the call did not run: job \d+ of its worker is failed \(.*/no/python"
    with fairlead.Executor(client, python="/no/python", resources=SMALL) as executor, pytest.raises(Lost, match=why):
        executor.submit(abs, -1).result(SECONDS)


def test_calls_whose_client_was_closed_end_with_an_error(up: Up, client: Client) -> None:
    other = Client(up.url, up.token)
    executor = fairlead.Executor(other, resources=SMALL)
    slow = executor.submit(time.sleep, 600)
    until(lambda: slow.job)
    other.close()
    with pytest.raises(RuntimeError):
        slow.result(SECONDS)
    client.kill(slow.job)  # type: ignore[attr-defined]


def test_shutdown(client: Client) -> None:
    executor = fairlead.Executor(client, resources=SMALL)
    calls = [executor.submit(abs, -number) for number in range(5)]
    executor.shutdown()
    assert [call.result(0) for call in calls] == list(range(5))
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)
    other = fairlead.Executor(client, resources=SMALL, name="ends")
    slow = [other.submit(time.sleep, 600) for _ in range(3)]
    other.shutdown(cancel_futures=True)
    assert not wait(slow, SECONDS).not_done and all(call.cancelled() for call in slow)
    until(lambda: not jobs_named(client, "ends"))
    unused = fairlead.Executor(client)
    unused.shutdown()


def test_shutdown_without_waiting(client: Client) -> None:
    executor = fairlead.Executor(client, resources=SMALL, name="later")
    call = executor.submit(time.sleep, 0.2)
    executor.shutdown(wait=False)
    assert call.result(SECONDS) is None
    until(lambda: not jobs_named(client, "later"))


# -- attacks -------------------------------------------------------------------------------------------------------


class Touch:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def meet(client: Link, worker: Link) -> None:
    """Let both ends of a connection prove themselves."""
    client.feed(worker.greeting)
    worker.feed(client.greeting)
    proofs = client.greet(), worker.greet()
    worker.feed(proofs[0])
    client.feed(proofs[1])
    assert list(client.messages()) == list(worker.messages()) == []


def test_both_ends_need_the_key() -> None:
    client, worker = Link(b"k" * 32, False), Link(b"k" * 32, True)
    meet(client, worker)
    worker.feed(b"".join(client.message(CALL, 7, b"content")))
    assert list(worker.messages()) == [(CALL, 7, b"content")]
    for ends in ((b"k", b"l"), (b"l", b"k")):
        with pytest.raises(Forged, match="does not have the key"):
            meet(Link(ends[0] * 32, False), Link(ends[1] * 32, True))
    mirror = Link(b"k" * 32, False)
    mirror.feed(mirror.greeting)
    with pytest.raises(Forged):  # an end that sends back what it gets
        mirror.feed(mirror.greet())
        list(mirror.messages())


def test_changed_messages_are_not_read() -> None:
    def forge(change: Callable[[bytes], bytes]) -> None:
        client, worker = Link(b"k" * 32, False), Link(b"k" * 32, True)
        meet(client, worker)
        worker.feed(change(b"".join(client.message(CALL, 7, b"content"))))
        assert not list(worker.messages())

    forge(lambda data: data[:-1])  # it is incomplete
    for position in (1, 20, -1):
        with pytest.raises(Forged):
            forge(lambda data, at=position: data[:at] + bytes([data[at] ^ 1]) + data[at:][1:])  # type: ignore[misc]
    with pytest.raises(Forged):
        forge(lambda data: data + data)  # it is repeated


def test_a_stranger_at_the_port_of_a_worker_changes_nothing(client: Client, tmp_path: Path) -> None:
    with fairlead.Executor(client, resources=SMALL, max_workers=1) as executor:
        first = executor.submit(abs, -1)
        assert first.result(SECONDS) == 1
        text = b"".join(client.log(first.job))  # type: ignore[attr-defined]
        port = int(text.splitlines()[0].removeprefix(LISTENS))
        strangers = []
        evil = pickle.dumps(Touch(tmp_path / "owned"))
        for _ in range(12):  # more than a worker listens to
            stranger = socket.create_connection(("127.0.0.1", port))
            assert len(stranger.recv(SIZE, socket.MSG_WAITALL)) == SIZE
            with contextlib.suppress(OSError):
                stranger.sendall(os.urandom(2 * SIZE) + b"\0" * 17 + evil)
            strangers.append(stranger)
        assert executor.submit(abs, -2).result(SECONDS) == 2
        for stranger in strangers:
            stranger.close()
        assert executor.submit(abs, -3).result(SECONDS) == 3
    assert not (tmp_path / "owned").exists()


def test_the_key_is_with_the_client_and_its_workers_alone(up: Up, client: Client) -> None:
    def key() -> str:
        environment = Path("/proc/self/environ").read_bytes()
        found = re.search(rb"FAIRLEAD_CALL_KEY=([0-9a-f]{64})\0", environment)
        assert found
        inherited = "FAIRLEAD_CALL_KEY" in os.environ
        assert not inherited
        return found[1].decode()

    others = set(client.secrets())  # of clients that died
    with fairlead.Executor(client, resources=SMALL) as executor:
        call = executor.submit(key)
        value = call.result(SECONDS)
        (name,) = set(client.secrets()) - others
        assert name.startswith("executor-")
        assert value not in up.run("show", call.job, "--json")  # type: ignore[attr-defined]
        for file in up.folder.rglob("*"):
            if file.is_file():
                assert value.encode() not in file.read_bytes(), file
    assert set(client.secrets()) == others


def test_workers_without_the_key_say_so(client: Client) -> None:
    others = set(client.secrets())
    with fairlead.Executor(client, resources=SMALL, idle=0.1, name="keyless") as executor:
        assert executor.submit(abs, -1).result(SECONDS) == 1
        until(lambda: not jobs_named(client, "keyless"))
        (name,) = set(client.secrets()) - others
        client.remove_secret(name)
        with pytest.raises(Exception, match=f'has no secret "{name}"'):
            executor.submit(abs, -2).result(SECONDS)


def test_threads_share_an_executor(executor: fairlead.Executor) -> None:
    calls: list[Future[int]] = []
    threads = [
        threading.Thread(target=lambda at=at: calls.extend(executor.submit(abs, -at) for _ in range(50)))  # type: ignore[misc]
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(call.result(SECONDS) for call in calls) == [at for at in range(4) for _ in range(50)]
