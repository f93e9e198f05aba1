"""An agent and its spawners as real processes, under the real hub and writer."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.agent.machine import free_ports
from fairlead.agent.process import Agent, Settings, Taken, spawners_for
from fairlead.core.commands import MoveNode, RemoveNode
from fairlead.core.model import Stage
from fairlead.core.state import Partition
from fairlead.gang import wait
from fairlead.wire.agent_messages import LogRequest
from fairlead.wire.handshake import Key, join_token
from tests.agent.plant import PARTITION, SECONDS, Machine, Plant, machine

SHORT = {"heartbeat": "1s", "preempt_grace": "300ms"}

Story = Callable[[Plant, Machine, Path], Coroutine[Any, Any, None]]


@asynccontextmanager
async def plant_with_agent(path: Path, *options: str, **settings: Any) -> AsyncIterator[tuple[Plant, Machine]]:
    async with (
        Plant(path / "journal", {**SHORT, **settings}).at_work() as plant,
        machine(path / "agent", plant.url, "--resource=cpu=8", "--resource=memory=8Gi", *options) as one,
    ):
        yield plant, one


def tell(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await story()

    asyncio.run(in_time())


def stage_of(plant: Plant, job: str) -> Stage:
    return plant.partition.jobs[job].stages[0]


async def log_of(plant: Plant, job: str, stream: Any = "out", index: int = 0, attempt: int = 1) -> str:
    number = await plant.job(job, lambda each: each.number)
    asked = LogRequest(0, number, "main", index, attempt, stream)
    return b"".join([part.data async for part in plant.hub.log(PARTITION, "n1", asked)]).decode()


WHICH = "$FAIRLEAD_JOB $FAIRLEAD_STAGE $FAIRLEAD_INDEX $FAIRLEAD_ATTEMPT"


def test_a_task_runs_and_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["sh", "-c", f"echo {WHICH}; echo bad >&2; pwd"], directory="/tmp")
            assert await plant.over(job) == "succeeded"
            assert await log_of(plant, job) == f"{job} main 0 1\n/tmp\n"
            assert await log_of(plant, job, "err") == "bad\n"
            await plant.ends(1)
            (ended,) = plant.ended
            assert (ended.state, ended.exit_code, ended.signal) == ("succeeded", 0, 0)
            assert ended.ran > 0 and ended.cpu > 0 and ended.memory > 0

    tell(story)


def test_jobs_that_run_the_same_are_known_apart(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            same = ["sh", "-c", f"echo {WHICH}"]
            jobs = await asyncio.gather(*(plant.submit(same, count=2) for _ in range(5)))
            for job in jobs:
                assert await plant.over(job) == "succeeded"
                assert [await log_of(plant, job, index=index) for index in range(2)] == [
                    f"{job} main 0 1\n",
                    f"{job} main 1 1\n",
                ]

    tell(story)


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (["sh", "-c", "exit 3"], 3, "exit code 3"),
        (["sh", "-c", "kill -9 $$"], 137, "ended by SIGKILL"),
        (["no-such-program"], 127, "command not found: no-such-program"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
    ],
)
def test_a_task_that_fails_says_why(tmp_path: Path, command: list[str], code: int, reason: str) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            for _ in range(2):  # the second one finds the folder of its log
                job = await plant.submit(command)
                assert await plant.over(job) == "failed"
                past = stage_of(plant, job).past(0)
                assert (past.exit_code, past.reason) == (code, reason)

    tell(story)


def test_an_array_runs_in_chains(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["true"], count=500, min=1, resources={"cpu": 2})
            assert await plant.over(job) == "succeeded"
            assert await plant.ends(500) == list(range(500))

    tell(story)


def test_a_killed_job_leaves_no_process(tmp_path: Path) -> None:
    """The task ignores TERM and has a child in a session of its own."""
    file = tmp_path / "pids"
    script = f"trap '' TERM; setsid sleep 1000 & echo $! >{file}; echo $$ >>{file}; while :; do sleep 1000; done"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["sh", "-c", script])
            while not file.exists() or len(file.read_text().split()) < 2:
                await asyncio.sleep(0.01)
            await plant.kill(job)
            assert await plant.over(job) == "killed"
            pids = list(map(int, file.read_text().split()))
            while any(map(psutil.pid_exists, pids)):  # killed, and gone once the kernel has removed them
                await asyncio.sleep(0.01)

    tell(story)


def test_what_a_task_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    script = f"sleep 1000 & echo $! >{file}; setsid sleep 1000 & echo $! >>{file}; sleep 0.2"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["sh", "-c", script])
            assert await plant.over(job) == "succeeded"
            pids = list(map(int, file.read_text().split()))
            while any(map(psutil.pid_exists, pids)):
                await asyncio.sleep(0.01)

    tell(story)


def test_a_task_over_its_memory_is_ended(tmp_path: Path) -> None:
    script = "x = bytearray(200 << 20); import time; time.sleep(1000)"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["python3", "-c", script], resources={"cpu": 1, "memory": "64Mi"})
            assert await plant.over(job) == "failed"
            assert "its limit is 64 MiB" in stage_of(plant, job).past(0).reason

    tell(story)


def test_members_of_a_gang_get_their_ranks_and_addresses(tmp_path: Path) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FAIRLEAD_PEERS NODE_RANK".split()
    script = f"import os, json; print(json.dumps([os.environ[name] for name in {names}]))"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["python3", "-c", script], count=3)
            assert await plant.over(job) == "succeeded"
            for index in range(3):
                found = dict(zip(names, json.loads(await log_of(plant, job, index=index)), strict=True))
                assert 20_000 <= int(found.pop("MASTER_PORT")) < 32_000
                assert found == {
                    "RANK": str(index),
                    "WORLD_SIZE": "3",
                    "LOCAL_RANK": str(index),
                    "LOCAL_WORLD_SIZE": "3",
                    "MASTER_ADDR": "127.0.0.1",
                    "FAIRLEAD_PEERS": "127.0.0.1,127.0.0.1,127.0.0.1",
                    "NODE_RANK": "0",
                }

    tell(story)


def test_a_log_is_followed_while_it_grows(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def story() -> None:
        # An agent reconnects if its heartbeats are not answered in time, which ends requests in progress.
        async with plant_with_agent(tmp_path, heartbeat="10s") as (plant, _):
            job = await plant.submit(["sh", "-c", f"echo one; while ! [ -e {go} ]; do sleep 0.01; done; echo two"])
            await plant.until(
                lambda partition: [allocation.state for allocation in partition.allocations.values()] == ["running"]
            )
            number = await plant.job(job, lambda each: each.number)
            text = b""
            async for part in plant.hub.log(PARTITION, "n1", LogRequest(0, number, "main", 0, 1, follow=True)):
                text += part.data
                if text == b"one\n":
                    go.touch()
            assert text == b"one\ntwo\n"

    tell(story)


def test_an_attempt_that_was_refused_is_not_started_later(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, one):
            await plant.until(lambda partition: partition.nodes.rows)
            spawners = one.spawners()
            for pid in spawners:  # they cannot write their ledgers, so they accept no task
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            job = await plant.submit(["sh", "-c", f"echo $FAIRLEAD_ATTEMPT >> {ran}"])
            await plant.until(lambda partition: partition.nodes.avoided)
            await one.kill()
            for pid in spawners:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await one.start()
            assert await plant.over(job) == "succeeded"
            (attempt,) = ran.read_text().split()
            assert int(attempt) > 1

    tell(story)


def test_a_spawner_that_could_not_be_started_is_started_later(tmp_path: Path) -> None:
    """The agent is out of descriptors while its spawners are gone. Launches are refused until it has some again."""
    go = tmp_path / "go"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, one):
            waits = ["sh", "-c", f"while ! [ -e {go} ]; do sleep 0.01; done"]
            job = await plant.submit(waits)
            await plant.until(
                lambda partition: [allocation.state for allocation in partition.allocations.values()] == ["running"]
            )
            assert one.process is not None
            before = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (1, before[1]))
            one.kill_spawners()
            log = tmp_path / "agent.log"
            spawners = spawners_for(os.cpu_count() or 1)
            while log.read_text().count("no spawner could be started") < spawners:  # all of them are missing
                await asyncio.sleep(0.01)
            later = await plant.submit(["true"])
            await plant.until(lambda partition: partition.nodes.avoided)
            assert "Too many open files" in stage_of(plant, later).past(0).reason
            assert log.read_text().count("no spawner could be started") == spawners, "once for each spawner"
            resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, before)
            go.touch()
            assert await plant.over(job) == "succeeded"
            assert await plant.over(later) == "succeeded"

    tell(story)


@pytest.fixture
def few_processes() -> Iterator[Path]:
    """A cgroup that can limit how many processes are in it."""
    for base in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = base / f"fairlead-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            yield group
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (base / "cgroup.procs").write_text(pid)
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("no cgroup of processes can be made here; run the tests as root")


def test_a_node_that_cannot_fork_pauses_and_goes_on_later(tmp_path: Path, few_processes: Path) -> None:
    """`EAGAIN` is a fault of the node: no task fails by it, and none is sent there again and again meanwhile."""

    async def story() -> None:
        async with plant_with_agent(tmp_path, max_launch_tries=1) as (plant, one):
            await plant.until(lambda partition: partition.nodes.rows)
            spawners = one.spawners()
            for pid in spawners:
                (few_processes / "cgroup.procs").write_text(str(pid))
            (few_processes / "pids.max").write_text("1")
            job = await plant.submit(["true"], count=150, min=1, resources={"cpu": 0.01})
            said = "Resource temporarily unavailable"
            await plant.until(
                lambda partition: max(partition.nodes.failures) and said in stage_of(plant, job).past(0).reason
            )
            assert stage_of(plant, job).top <= 4, "it is tried again after a pause only"
            (few_processes / "pids.max").write_text("max")
            assert await plant.over(job) == "succeeded"
            assert one.spawners() == spawners

    tell(story)


def test_a_node_that_is_removed_while_its_agent_is_there_joins_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            await plant.until(lambda partition: partition.nodes.find("n1") is not None)
            before = await plant.read(lambda partition: partition.nodes.find("n1"))
            job = await plant.submit(["sleep", "1000"])
            await plant.until(
                lambda partition: [allocation.state for allocation in partition.allocations.values()] == ["running"]
            )
            await plant.ask(RemoveNode(name="n1", operator=True))
            await plant.until(lambda partition: partition.nodes.find("n1") not in (None, before))
            await plant.until(
                lambda partition: [allocation.state for allocation in partition.allocations.values()] == ["running"]
            )
            await plant.kill(job)
            assert await plant.over(job) == "killed"

    tell(story)


def test_drained_nodes_return_what_has_not_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["true"], count=3000, min=1, resources={"cpu": 4})
            await plant.until(lambda partition: partition.derived.chains)
            await plant.ask(MoveNode(name="n1", action="drain", operator=True))
            await plant.until(lambda partition: not partition.allocations)
            await plant.ask(MoveNode(name="n1", action="enable", operator=True))
            assert await plant.over(job) == "succeeded"
            assert await plant.ends(3000) == list(range(3000))

    tell(story)


RING = Path(__file__).parents[2] / "examples" / "gang" / "ring.py"


def test_a_gang_adds_up_in_a_ring(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["python3", str(RING)], count=4)
            assert await plant.over(job) == "succeeded"
            total = [6 + 4 * at for at in range(10)]
            for index in range(4):
                assert await log_of(plant, job, index=index) == f"rank {index} of 4: {total}\n"

    tell(story)


def test_members_of_a_gang_wait_for_each_other(tmp_path: Path) -> None:
    """Each member leaves a file, waits for all members, and then lists the files."""
    there = f"touch {tmp_path}/member.$RANK; sleep 0.$RANK"
    script = f"{there}; {shlex.quote(sys.executable)} -m fairlead.gang 30 && ls {tmp_path} | grep -c member"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            job = await plant.submit(["sh", "-c", script], count=4)
            assert await plant.over(job) == "succeeded"
            assert [await log_of(plant, job, index=index) for index in range(4)] == ["4\n"] * 4

    tell(story)


def test_ports_that_another_user_has_bound_do_not_keep_a_gang_from_starting(tmp_path: Path) -> None:
    """They followed from the number of the job: these are those of job 1."""
    script = f"echo $MASTER_PORT $FAIRLEAD_PORT; exec {shlex.quote(sys.executable)} -m fairlead.gang 20"

    async def story() -> None:
        async with plant_with_agent(tmp_path) as (plant, _):
            with (
                socket.create_server(("", 20_062)),
                socket.create_server(("", 20_063)),
            ):
                job = await plant.submit(["sh", "-c", script], count=3, min=3)
                assert await plant.over(job) == "succeeded"
            ports = {await log_of(plant, job, index=index) for index in range(3)}
            assert len(ports) == 1 and ports != {"20062 20063\n"}

    tell(story)


def test_free_ports_are_not_bound_and_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.agent.machine.PORTS", range(23_000, 23_006))
    with socket.create_server(("", 23_000)), socket.create_server(("127.0.0.1", 23_001)), socket.socket() as bound:
        bound.bind(("127.0.0.1", 23_002))
        assert sorted(free_ports({23_003})) == [23_004, 23_005]
        assert len(set(free_ports(set(range(23_000, 23_006))))) == 2


def test_a_gang_that_is_not_complete_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("0", "1"):
        for name, value in {
            "RANK": rank,
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "FAIRLEAD_PORT": "20999",
            "FAIRLEAD_GANG_KEY": "5a" * 32,
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(TimeoutError, match=r"not all 2 members of the gang came within 0\.2 s"):
            wait(0.2)


def test_a_second_agent_on_a_directory_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        token = join_token("secret", Key().public)
        settings = Settings(join="http://127.0.0.1:1", directory=tmp_path / "agent", token=token)
        first = Agent(settings, lambda event, fields: None)
        with pytest.raises(Taken, match="another agent uses"):
            Agent(settings, lambda event, fields: None)
        os.close(first._lock)

    tell(story)


def test_a_node_that_starts_no_task_of_several_jobs_in_a_row_is_drained(tmp_path: Path) -> None:
    async def story() -> None:
        async with plant_with_agent(tmp_path, "--for=ann", "--for=bob", "--user=root") as (plant, _):

            async def fail(user: str, jobs: int) -> None:
                for _ in range(jobs):
                    assert await plant.over(await plant.submit(["/missing/program"], user=user)) == "failed"

            def state(partition: Partition) -> tuple[str, str]:
                node = partition.nodes.joins["n1"]
                return partition.nodes.state[partition.nodes.rows[node]], partition.nodes.reasons.get(node, "")

            await fail("ann", 8)  # a user alone cannot take out a node
            assert await plant.over(await plant.submit(["false"], user="bob")) == "failed"  # it ran
            await fail("ann", 4)
            assert (await plant.read(state))[0] == "up"
            await fail("bob", 1)
            await plant.until(lambda partition: state(partition)[0] == "draining")
            assert (await plant.read(state))[1] == (
                "it could start no task of 5 jobs in a row: command not found: /missing/program"
            )
            waits = await plant.submit(["true"], user="bob")
            await plant.ask(MoveNode(name="n1", action="enable", operator=True))
            assert await plant.over(waits) == "succeeded"

    if os.geteuid() != 0:
        pytest.skip("only root may run tasks of several users as itself")
    tell(story)
