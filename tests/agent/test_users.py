"""Tasks run as the users that submitted them: a real root agent, and real system users."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from fairlead.agent import split
from fairlead.agent.spawner import root
from fairlead.agent.spawner.confine import KEY_CALL
from fairlead.agent.spawner.users import NotAllowed, find_person
from fairlead.core.commands import Kill
from fairlead.wire.agent_messages import LogRequest, OutputRequest, Tasks
from tests.agent.plant import JOIN_TOKEN, PARTITION, SECONDS, Machine, Plant
from tests.cli.test_containers import make_root
from tests.live import PROGRAM
from tests.people import People, needs_root, people

pytestmark = needs_root


@pytest.fixture(scope="module")
def two() -> Iterator[People]:
    with people("ann", "bob") as found:
        yield found


@asynccontextmanager
async def node(two: People, path: Path, *options: str) -> AsyncIterator[tuple[Plant, Machine]]:
    settings = {"heartbeat": "1s", "preempt_grace": "300ms"}
    async with Plant(path / "journal", settings).at_work() as plant:
        about = ("--resource=cpu=8", f"--token-file={path / JOIN_TOKEN}", *two.options, *options)
        one = Machine(two.folder / path.name / "node", plant.url, *about)
        one.directory.parent.mkdir(mode=0o711)
        await one.start()
        try:
            await plant.until(lambda partition: partition.nodes.find("n1") is not None)
            yield plant, one
        finally:
            await one.clear()


def tell(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await story()

    asyncio.run(in_time())


async def run(plant: Plant, user: str, script: str, **stage: Any) -> tuple[str, str]:
    """Run a script as a user: how it ended, and what it wrote."""
    job = await plant.submit(["/bin/sh", "-c", script], user=user, **stage)
    state = await plant.over(job)
    return state, await log_of(plant, user, job)


async def log_of(plant: Plant, user: str, job: str) -> str:
    number = await plant.job(job, lambda each: each.number)
    asked = LogRequest(0, number, "main", 0, 1, user=user)
    return b"".join([part.data async for part in plant.hub.log(PARTITION, "n1", asked)]).decode()


async def runs_as_its_user(plant: Plant, one: Machine, two: People) -> None:
    for user, name in two.names.items():
        person = pwd.getpwnam(name)
        state, said = await run(plant, user, "id -u; id -g; id -G; pwd; echo $HOME $USER; umask")
        assert state == "succeeded"
        uid, gid, groups, folder, names, mask = said.splitlines()
        assert (int(uid), int(gid), groups.split()) == (person.pw_uid, person.pw_gid, [str(person.pw_gid)])
        assert (folder, names, mask) == (person.pw_dir, f"{person.pw_dir} {name}", "0022")
    labels = await labels_of(plant)
    assert labels["users"] == "separate" and labels["tmp"] in ("private", "shared")


async def has_its_own_tmp(plant: Plant, one: Machine, two: People) -> None:
    if (await labels_of(plant))["tmp"] != "private":
        return  # mounts are impossible here, and the node says so
    await run(plant, "ann", "echo private > /tmp/note; chmod 644 /tmp/note; chmod 755 /tmp")
    assert (await run(plant, "bob", "cat /tmp/note /var/tmp/note"))[0] == "failed"
    assert (await run(plant, "ann", "cat /tmp/note /var/tmp/note"))[1] == "private\nprivate\n"
    assert not Path("/tmp/note").exists()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        job = await plant.submit(["true"], directory=folder)
        assert await plant.over(job) == "failed"
        assert "every user has a /tmp of its own" in await plant.job(job, lambda each: each.reason)


async def has_limits(plant: Plant, one: Machine, two: People) -> None:
    _, said = await run(plant, "ann", "cat /proc/self/limits /proc/self/cgroup")
    hard = {name.strip(): value for name, value in re.findall(r"(Max [a-z ]+) +\S+ +(\S+)", said)}
    assert int(hard["Max processes"]) <= int(Path("/proc/sys/kernel/pid_max").read_text()) // 2
    assert int(hard["Max open files"]) <= 65536
    assert (await labels_of(plant))["cgroup"] == "none" or "/fairlead-" in said


async def is_ended_when_it_takes_too_much_memory(plant: Plant, one: Machine, two: People) -> None:
    taking = "exec python3 -c 'import time; taken = bytearray(400 << 20); time.sleep(600)'"
    job = await plant.submit(["/bin/sh", "-c", taking], resources={"cpu": 1, "memory": "100Mi"})
    assert await plant.over(job) == "failed"
    assert "its limit is 100 MiB" in await plant.job(job, lambda each: each.stages[0].past(0).reason)


async def cannot_lead_its_log_elsewhere(plant: Plant, one: Machine, two: People) -> None:
    ann = await plant.submit(["echo", "private"])
    assert await plant.over(ann) == "succeeded"
    users = one.directory / "users"
    lead = f"rm -r {users}/bob/logs/0.0; ln -s {users}/ann/logs/0.0 {users}/bob/logs/0.0; echo done"
    bob = await plant.submit(["/bin/sh", "-c", lead], user="bob")
    assert await plant.over(bob) == "succeeded"
    assert await log_of(plant, "ann", ann) == "private\n"
    assert await log_of(plant, "bob", ann) == ""
    await run(plant, "bob", f"rm {users}/bob/logs/0.0; mkdir {users}/bob/logs/0.0")


async def has_its_result_files_collected_with_its_own_rights(plant: Plant, one: Machine, two: People) -> None:
    script = "umask 077; mkdir -p out; echo private >out/mine"
    ann = await plant.submit(["/bin/sh", "-c", script], results=["out/*"])
    bob = await plant.submit(["true"], user="bob", directory="/", results=["etc/shadow", f"{two.folder}/**"[1:]])
    for user, job, found, said in (("ann", ann, {"out/mine": b"private\n"}, ""), ("bob", bob, {}, "Permission denied")):
        assert await plant.over(job) == "succeeded", await plant.job(job, lambda each: each.reason)
        tasks = Tasks(job, await plant.job(job, lambda each: each.number), "main", 1, (0, 1))
        asked = OutputRequest(0, tasks, user, False, 10, 1000)
        parts = [part async for part in plant.hub.outputs(PARTITION, "n1", asked)]
        assert {piece.name: piece.data for part in parts for piece in part.outputs} == found
        (collected,) = [each for part in parts for each in part.collected]
        assert said in collected.warning and bool(said) == bool(collected.warning)
        folder = one.directory / "users" / user / "logs"
        assert len(list((one.directory / f"agent/results/of-{user}").glob("*/*"))) == 1
        plant.hub.taken(PARTITION, "n1", tasks, user)
        while list(folder.glob("*/*.file*")) or list((one.directory / f"agent/results/of-{user}").glob("*/*")):
            await asyncio.sleep(0.02)


async def runs_in_a_container_as_itself(plant: Plant, one: Machine, two: People) -> None:
    if "image.folder" not in await labels_of(plant):
        return  # this package lies in /tmp, which the users do not see, and the node says that it runs no images
    image = make_root(two.folder / "image")
    for user, name in two.names.items():
        person = pwd.getpwnam(name)
        script = "cat /etc/marker; id -u; cat /etc/passwd; echo mine > $HOME/mine; cat $HOME/mine; touch /etc/x"
        state, said = await run(plant, user, script, image=str(image))
        assert state == "failed"  # because the image is read-only
        lines = said.splitlines()
        assert lines[:2] == ["inside", str(person.pw_uid)], said
        assert any(line.startswith(f"{name}:x:{person.pw_uid}:") for line in lines)
        assert lines[-1] == "mine" and Path(person.pw_dir, "mine").stat().st_uid == person.pw_uid


async def is_refused_with_a_reason(plant: Plant, one: Machine, two: People) -> None:
    for user, why in (
        ("eve", "uid 0, and this node allows"),
        ("fred", "this node allows"),
        ("gus", "this node has no system user no-such-user"),
        ("zoe", "this node has no system user zoe"),
        ("ada", "this node allows"),
    ):
        job = await plant.submit(["true"], user=user)
        assert await plant.over(job) == "failed"
        reason = await plant.job(job, lambda each: each.reason)
        assert why in reason, reason
        assert (await run(plant, "ann", "echo still here"))[1] == "still here\n"  # else the node would be drained


async def ends_with_its_spawner_and_not_with_the_agent(plant: Plant, one: Machine, two: People) -> None:
    job = await plant.submit(["sleep", "600"])
    await plant.until(lambda partition: process_of(two.names["ann"], "sleep"))
    first = process_of(two.names["ann"], "sleep")
    await one.kill()
    await one.start()
    await plant.until(lambda partition: "n1" in plant.hub.connected(PARTITION))
    assert process_of(two.names["ann"], "sleep") == first
    os.kill(psutil.Process(first).ppid(), signal.SIGKILL)
    while psutil.pid_exists(first):
        await asyncio.sleep(0.05)
    await plant.until(lambda partition: process_of(two.names["ann"], "sleep"))  # it is tried again
    await plant.kill(job)
    assert await plant.over(job) == "killed"


async def has_no_spawner_when_idle(plant: Plant, one: Machine, two: People) -> None:
    assert (await run(plant, "ann", "echo one"))[1] == "one\n"
    while (one.directory / "users/ann/socket").exists():
        await asyncio.sleep(0.2)
    assert not processes_of(two.names["ann"])
    assert (await run(plant, "ann", "echo two"))[1] == "two\n"


def test_a_user_on_a_node(two: People, tmp_path: Path) -> None:
    """Several scenarios on one node, one after the other, because starting a node takes long."""
    with two.map_file.open("a") as file:
        file.write(f"eve=root\nfred=daemon\ngus=no-such-user\nada={two.agent}\n")

    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            for each in (
                runs_as_its_user,
                has_its_own_tmp,
                has_limits,
                is_ended_when_it_takes_too_much_memory,
                has_its_result_files_collected_with_its_own_rights,
                cannot_lead_its_log_elsewhere,
                runs_in_a_container_as_itself,
                is_refused_with_a_reason,
                ends_with_its_spawner_and_not_with_the_agent,
                has_no_spawner_when_idle,
            ):
                await each(plant, one, two)

    tell(story)


async def pauses_no_node_for_others(plant: Plant, one: Machine, two: People) -> None:
    """A user can lower the limits of its own spawner, which has the same uid. That is no fault of the node."""
    job = await plant.submit(
        ["/bin/sh", "-c", "prlimit --pid $PPID --nproc=1:1; echo done; exec sleep 600"], user="bob"
    )
    while await log_of(plant, "bob", job) != "done\n":
        await asyncio.sleep(0.05)
    more = await plant.submit(["true"], user="bob", count=20, min=1)
    assert await plant.over(more) == "failed"
    reason = await plant.job(more, lambda each: each.stages[0].past(0).reason)
    assert reason == (
        "no process could be started: Resource temporarily unavailable; "
        "tasks of other users can start here, so bob is over a limit"
    )
    assert await plant.read(lambda partition: max(partition.nodes.failures)) == 0
    assert (await run(plant, "ann", "echo still here"))[1] == "still here\n"
    await plant.ask(Kill(job=job, user="bob"))
    assert await plant.over(job) == "killed"
    while processes_of(two.names["bob"]):  # the limit ends with the spawner
        await asyncio.sleep(0.1)


async def writes_output_with_its_own_rights(plant: Plant, one: Machine, two: People) -> None:
    """The spawner opens the files of `output` and `error`: as the task's user, and none of its own."""
    ann, bob = (two.folder / two.names[user] for user in ("ann", "bob"))
    await run(plant, "ann", "mkdir -m 755 ~/shared; echo mine > ~/shared/note")
    await run(plant, "bob", f"ln -s {ann}/shared/note ~/link; mkfifo ~/fifo; mkdir ~/folder")
    own = [f"/proc/self/fd/{number}" for number in range(12)]
    others = [
        f"{ann}/shared/note",
        f"{ann}/shared/new",
        f"{bob}/link",
        f"{one.directory}/users/ann/logs/0.0/1.main.0.1.out",
    ]
    odd = [f"{bob}/fifo", f"{bob}/folder", "/dev/full", "/dev/tty", "/proc/self/mem"]
    for path in (*others, *odd, *own, f"{one.directory}/users/bob/ledger"):
        for where in ("output", "error"):
            job = await plant.submit(["/bin/sh", "-c", "echo forged; echo forged >&2"], user="bob", **{where: path})
            assert await plant.over(job) == "failed", path
            reason = await plant.job(job, lambda each: each.reason)
            assert f"its output {path}: " in reason, reason
    assert (await run(plant, "ann", "cat ~/shared/*"))[1] == "mine\n"
    job = await plant.submit(
        ["/bin/sh", "-c", "echo %; stat -c %U ~/out-*"], user="bob", output=f"{bob}/out-%j-%s-%a-%r-%%"
    )
    assert await plant.over(job) == "succeeded"
    assert (bob / f"out-{job}-main-0-1-%").read_text() == f"%\n{two.names['bob']}\n"


def test_a_user_harms_only_itself(two: People, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            for each in (writes_output_with_its_own_rights, pauses_no_node_for_others):
                await each(plant, one, two)

    tell(story)


def test_no_attack_on_another_user_succeeds(two: People, tmp_path: Path) -> None:
    """Ann's task has a secret and writes to its log and /tmp. Bob's looks for all of it, and for the server's files."""
    script = two.folder / "attack.py"
    script.write_text((Path(__file__).parent / "attack.py").read_text())
    script.chmod(0o644)
    with server(two.folder / "data") as data:

        async def story() -> None:
            async with node(two, tmp_path) as (plant, one):
                flag = two.folder / two.names["ann"] / "go"
                command = f"touch /tmp/of-the-victim; echo private $SECRET; while [ ! -e {flag} ]; do sleep 0.1; done"
                job = await plant.submit(["/bin/sh", "-c", command], environment={"SECRET": "hush"})
                await plant.until(lambda partition: plant.partition.jobs[job].stages[0].live)
                while "hush" not in await log_of(plant, "ann", job):
                    await asyncio.sleep(0.05)
                victim = process_of(two.names["ann"])
                assert one.process is not None
                system = [*relatives(victim), one.process.pid, *helpers(one.process.pid), data.pid]
                arguments = [data.folder, one.directory, victim, *system]
                attack = " ".join(map(str, ("/usr/bin/python3", "-I", script, *arguments)))
                state, said = await run(
                    plant, "bob", f"cd /; exec {attack}", environment={"ATTACKER": "bob", "VICTIM": "ann"}
                )
                assert (state, json.loads(said)) == ("succeeded", [])
                flag.touch()
                assert await plant.over(job) == "succeeded"
                assert await log_of(plant, "ann", job) == "private hush\n"

        tell(story)


def test_the_attack_finds_what_is_open(two: People, tmp_path: Path) -> None:
    """The same attack by ann's own user on ann's task succeeds, so the attacks work."""
    script = two.folder / "attack.py"
    script.write_text((Path(__file__).parent / "attack.py").read_text())
    script.chmod(0o644)

    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            job = await plant.submit(["sleep", "600"])
            await plant.until(lambda partition: process_of(two.names["ann"], "sleep"))
            victim = process_of(two.names["ann"], "sleep")
            attack = f"exec /usr/bin/python3 -I {script} /nowhere {one.directory} {victim}"
            _, said = await run(plant, "ann", attack, environment={"ATTACKER": "ann", "VICTIM": "ann"})
            won = json.loads(said)
            expected = {f"read environ of {victim}", f"signal {victim}", f"trace {victim}", "write to users/ann/tmp"}
            assert expected <= set(won), won
            assert not [
                each
                for each in won
                if "own spawner" in each or "privileges" in each or "connect" in each or "ledger" in each
            ]
            await plant.kill(job)

    tell(story)


def test_a_user_that_stops_its_own_spawner_does_not_keep_the_node_from_joining(two: People, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            job = await plant.submit(["sleep", "600"])
            await plant.until(lambda partition: process_of(two.names["ann"], "sleep"))
            first = process_of(two.names["ann"], "sleep")
            (spawner, *_) = relatives(first)
            guard = [child.pid for child in psutil.Process(spawner).children() if child.pid != first]
            await one.kill()
            for pid in (*guard, spawner):
                os.kill(pid, signal.SIGSTOP)
            await plant.until(lambda partition: "n1" not in plant.hub.connected(PARTITION))
            try:
                await one.start()
                async with asyncio.timeout(SECONDS / 2):
                    await plant.until(lambda partition: "n1" in plant.hub.connected(PARTITION))
            finally:
                for pid in (*guard, spawner):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            while psutil.pid_exists(first):
                await asyncio.sleep(0.05)
            await plant.kill(job)
            assert await plant.over(job) == "killed"

    tell(story)


@pytest.mark.long
def test_a_user_that_stops_its_own_spawner_does_not_pause_the_node(two: People, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(two, tmp_path) as (plant, _):
            stop = "echo started; sleep 1; kill -STOP $PPID; echo stopped; exec sleep 600"
            job = await plant.submit(["/bin/sh", "-c", stop], user="bob")
            while await log_of(plant, "bob", job) != "started\nstopped\n":
                await asyncio.sleep(0.05)
            more = await plant.submit(["true"], user="bob")
            assert await plant.over(more) == "succeeded"
            assert await plant.job(more, lambda each: each.stages[0].past(0).launches_failed) == 0
            assert await plant.read(lambda partition: max(partition.nodes.failures)) == 0
            await plant.ask(Kill(job=job, user="bob"))
            assert await plant.over(job) == "killed"

    tell(story)


def test_a_user_with_the_group_of_the_agent_may_not_run(two: People) -> None:
    """It would read and change the logs of all users."""
    ann = pwd.getpwnam(two.names["ann"])
    uids = (ann.pw_uid, ann.pw_uid)
    agent = pwd.getpwnam(two.agent)
    assert find_person("ann", {"ann": ann.pw_name}, uids, (agent.pw_uid, agent.pw_gid)).gid == ann.pw_gid
    with pytest.raises(NotAllowed, match="usermod -g"):
        find_person("ann", {"ann": ann.pw_name}, uids, (agent.pw_uid, ann.pw_gid))


def test_a_folder_that_the_agent_cannot_enter_ends_nothing_and_is_opened_by_the_helper(two: People) -> None:
    users = two.folder / "users"
    ann = pwd.getpwnam(two.names["ann"])
    agent = pwd.getpwnam(two.agent)
    person = find_person("ann", {"ann": ann.pw_name}, (ann.pw_uid, ann.pw_uid), (agent.pw_uid, agent.pw_gid))
    users.mkdir(mode=0o755)
    helper = object.__new__(root.Helper)
    helper._users, helper._agent = str(users), (agent.pw_uid, agent.pw_gid)
    agents = object.__new__(split.Helper)
    agents.users = users
    helper._prepare("ann", person)
    (users / "ann/socket").touch()
    (users / "bob").mkdir(mode=0o711)
    (users / "bob/socket").touch()
    (users / "ann").chmod(0o700)
    os.chown(users / "ann/logs", person.uid, 0)  # as a helper that was killed before it gave them to the agent
    (users / "ann/logs").chmod(0o700)
    os.seteuid(agent.pw_uid)
    try:
        assert agents.known() == ["bob"]
    finally:
        os.seteuid(0)
    helper._prepare("ann", person)
    os.seteuid(agent.pw_uid)
    try:
        assert agents.known() == ["ann", "bob"]
    finally:
        os.seteuid(0)
    logs = (users / "ann/logs").stat()
    assert (logs.st_uid, logs.st_gid, logs.st_mode & 0o7777) == (person.uid, agent.pw_gid, 0o2770)


KEYS = """
import ctypes, os, sys
from fairlead.agent.spawner.confine import JOIN_SESSION, KEY_CALL, become
from fairlead.agent.spawner.users import Person

ADD_KEY, SESSION, SEARCH = {250: 248, 219: 217}[KEY_CALL], -3, 10
libc = ctypes.CDLL(None, use_errno=True)

def call(*given):
    return libc.syscall(*(each if isinstance(each, bytes) or each is None else ctypes.c_long(each) for each in given))

def ask(uid, *given):
    if not (pid := os.fork()):
        become(Person("some", uid, uid, [uid], "/", "/bin/sh"))
        os._exit(0 if call(*given) > 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

if call(KEY_CALL, JOIN_SESSION, None) < 0:
    sys.exit("the kernel has no keys")
added = ask(23451, ADD_KEY, b"user", b"of-ann", b"hush", 4, SESSION)
print(added, ask(23452, KEY_CALL, SEARCH, SESSION, b"user", b"of-ann", 0))
"""


def test_users_do_not_share_keys_of_the_kernel() -> None:
    """Both begin in the session of the agent. The one adds a key to its session, and the other looks for it."""
    if KEY_CALL < 0:
        pytest.skip("the calls for keys are not known for this machine")
    done = subprocess.run([sys.executable, "-c", KEYS], capture_output=True, text=True, timeout=SECONDS, check=False)
    if "the kernel has no keys" in done.stderr:
        pytest.skip("the kernel has no keys")
    assert (done.stdout, done.stderr) == ("0 1\n", "")


# -- helpers -------------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    folder: Path
    pid: int


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A real server with its data, as root has it."""
    process = subprocess.Popen(
        [PROGRAM, "server", "--data", str(folder), "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline()
    try:
        yield Server(folder, process.pid)
    finally:
        process.terminate()
        process.wait(SECONDS)


async def labels_of(plant: Plant) -> dict[str, str]:
    return await plant.read(lambda partition: partition.nodes.labels[partition.nodes.rows[partition.nodes.joins["n1"]]])


def processes_of(name: str) -> list[psutil.Process]:
    """The processes of a system user that was made for this test."""
    uid = pwd.getpwnam(name).pw_uid
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == uid:
                found.append(process)
    return found


def process_of(name: str, command: str = "sh") -> int:
    for each in processes_of(name):
        with suppress(psutil.Error):
            if each.name() == command:
                return each.pid
    return 0


def relatives(pid: int) -> list[int]:
    """The spawner of a task, and its keeper."""
    spawner = psutil.Process(pid).parent()
    assert spawner is not None
    keeper = spawner.parent()
    return [spawner.pid] if keeper is None or keeper.pid == 1 else [spawner.pid, keeper.pid]


def helpers(agent: int) -> list[int]:
    return [child.pid for child in psutil.Process(agent).children()]
