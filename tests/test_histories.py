"""Histories in the manner of Jepsen: servers, agents, clients and a database under faults, judged by what was recorded.

Three servers share a database, each through a proxy of its own; agents reach each server through another one. Clients
submit single tasks, gangs, tasks that they scale and tasks that they kill; every task writes its start and its end to a
file, and the tasks of a gang wait for each other. The proxies of agents note which leader each agent follows. Meanwhile
leaders are killed, paused beyond their lease, cut off from the database or from agents, their clocks are stepped,
answers to commits are dropped, and PostgreSQL is killed, paused, or replaced by its synchronous standby. A replaced
primary comes back beside its successor, the clock of the database is set back, agents change their version, root
helpers are killed, and all servers are set back to a backup. `history_checker` judges the record.
"""

import getpass
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import psycopg
import pytest

import fairlead
from fairlead.core.ranges import Ranges
from fairlead.journal.journal import LINE
from fairlead.journal.locate import open_journal
from fairlead.journal.verify import verify
from tests.history_checker import Asked, Found, History, Run, Stored, check
from tests.network import AgentDoor
from tests.people import People, people
from tests.postgres import Postgres, PostgresProxy
from tests.servers import Agent, Server, fairlead_program
from tests.test_versions import extracted
from tests.until import until

LEASE = 1.5
CONFIG = "partitions: {default: {ready_after: 5s}}\n"
KINDS = ("single", "gang", "scaled", "killed")
SECONDS = {"single": 0.3, "gang": 0.3, "scaled": 3.0, "killed": 3_600.0}
SHARED = 2
"""Nodes on which each task runs as its user, if this test is root."""
PYTHON = "/usr/bin/python3"
# Two lines per task: its start and its end. A short line is appended at once.
SCRIPT = """
import os, time
def tell(what):
    with open({file!r}, "ab", 0) as file:
        line = f"{{what}} {{os.environ['FAIRLEAD_JOB']}} {{os.environ['FAIRLEAD_INDEX']}} "
        file.write((line + f"{{os.environ['FAIRLEAD_ATTEMPT']}} {{time.monotonic_ns()}}\\n").encode())
tell("start")
# The members of a gang have one attempt, and go on when all have started. A gang that is not whole fails.
job, attempt, deadline = os.environ["FAIRLEAD_JOB"], os.environ["FAIRLEAD_ATTEMPT"], time.monotonic() + 600
while {members} > 1 and time.monotonic() < deadline:
    with open({file!r}) as file:
        lines = [line.split() for line in file]
    started = {{line[2] for line in lines if line[:2] == ["start", job] and line[3:4] == [attempt]}}
    if len(started) == {members}:
        break
    time.sleep(0.2)
else:
    assert {members} == 1
time.sleep({seconds})
tell("end")
"""

pytestmark = pytest.mark.filterwarnings("ignore::fairlead.NeverRuns")


class Pair:
    """PostgreSQL with a standby, which takes the place of the primary when that one is lost."""

    def __init__(self, folder: Path, synchronous: bool) -> None:
        names = "ANY 1 (one, two, three)" if synchronous else ""
        options = ("-c", f"synchronous_standby_names={names}")
        self.primary = Postgres(folder / "one", durable=True, options=options)
        self.primary.start()
        self.standby = Postgres(folder / "two", durable=True, options=options, primary=self.primary)
        self.standby.start()
        self.third = Postgres(folder / "three", durable=True, options=options, primary=self.primary)
        """It does not run. It takes the place of a primary that is kept."""

    def leave(self, proxies: list[PostgresProxy]) -> Postgres:
        """Lose the primary, promote its standby, and let the third follow it. Return the primary, as it was."""
        left = self.primary
        left.stop(signal.SIGQUIT)
        self.standby.promote()
        for proxy in proxies:
            proxy.behind = self.standby
        self.primary, self.standby, self.third = self.standby, self.third, left
        self.standby.follow(self.primary)
        self.standby.start()
        return left

    def promote(self, proxies: list[PostgresProxy]) -> None:
        """Lose the primary for good, promote its standby, and set up another standby."""
        self.primary.stop(signal.SIGQUIT)
        self.standby.promote()
        for proxy in proxies:
            proxy.behind = self.standby
        self.primary, self.standby = self.standby, self.primary
        self.standby.follow(self.primary)
        self.standby.start()

    def close(self) -> None:
        for each in (self.third, self.standby, self.primary):
            each.stop(signal.SIGQUIT)


@contextmanager
def pair(synchronous: bool) -> Iterator[Pair]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-", dir=memory))
    folder.chmod(0o755)
    postgres = Pair(folder, synchronous)
    try:
        yield postgres
    finally:
        postgres.close()
        shutil.rmtree(folder, ignore_errors=True)


class Fleet:
    """Everything that a history needs."""

    def __init__(
        self,
        folder: Path,
        postgres: Pair,
        seed: int,
        agents: int,
        servers: int = 3,
        users: People | None = None,
    ) -> None:
        """With `users`, all jobs are Ann's, and the first nodes run them as her system user, through a root helper."""
        self.random = random.Random(seed)
        self.postgres = postgres
        self.database = postgres.primary.create()
        self.folder = folder
        self.file = folder / "runs"
        self.file.touch()
        self.file.chmod(0o666)
        self.user = "ann" if users else getpass.getuser()
        (folder / "config.yaml").write_text(CONFIG)
        self.proxies: list[PostgresProxy] = []
        self.servers: list[Server] = []
        for name in ("one", "two", "three")[:servers]:
            (folder / f"p-{name}").mkdir()
            proxy = PostgresProxy(folder / f"p-{name}", postgres.primary)
            options = ("--lease", f"{LEASE}s", "--config", str(folder / "config.yaml"))
            self.proxies.append(proxy)
            self.servers.append(Server(folder, name, proxy.url(self.database), *options).start())
        self.token = self.servers[0].token
        self.urls = ",".join(server.url for server in self.servers)
        self.followed: dict[str, dict[int, int]] = {}
        """Agent → number of a connection on which it followed a leader → epoch of the leader."""
        connections = count(1)
        self.doors = [
            AgentDoor(int(server.url.rpartition(":")[2]), connections, self.followed) for server in self.servers
        ]
        doors = ",".join(door.url for door in self.doors)
        shared = min(SHARED, agents // 2) if users else 0
        self.shared = [Agent(folder, f"s{at}", self.urls, self.token, doors=doors, users=users) for at in range(shared)]
        self.single = [
            Agent(folder, f"n{at}", self.urls, self.token, doors=doors, user=self.user) for at in range(agents - shared)
        ]
        self.agents = self.shared + self.single
        self.asked: dict[str, Asked] = {}
        self.epochs: dict[str, list[int]] = {agent.folder.name: [] for agent in self.agents}
        self.done, self.tended = threading.Event(), threading.Event()
        self.before = extracted(folder / "before")
        self.name = self.database.partition("@/")[2].partition("?")[0]
        self.led: list[float] = []
        """When a server said that it leads."""
        self.done_at: dict[str, float] = {}
        """Name of a job → when it was answered that it was scaled or killed."""
        self.submitted_at: dict[str, float] = {}
        self.outages: list[tuple[float, float]] = []
        """Times in which all servers were stopped, and set back to a backup."""
        self.faults: Counter[str] = Counter()
        self.story: list[tuple[float, float, str]] = []
        """Begin and end of each fault, and its kind."""

    def close(self) -> None:
        self.done.set()
        for agent in self.agents:
            agent.stop()
        for server in self.servers:
            if server.process is not None:
                server.process.send_signal(signal.SIGCONT)
                server.kill()
        for each in (*self.proxies, *self.doors):
            each.close()

    # Clients, and what is seen of agents

    def submit_on(self, client_number: int) -> None:
        number = 0
        with fairlead.Client(self.urls, self.token) as client:
            while not self.done.is_set():
                number += 1
                self.submit(client, f"c{client_number}-{number}", KINDS[number % len(KINDS)])
                time.sleep(0.2)

    def submit(self, client: fairlead.Client, name: str, kind: str) -> None:
        self.asked[name] = Asked(kind)
        stage: dict[str, object] = {"name": "main", "command": self.command(kind), "resources": {"cpu": "100m"}}
        stage |= {"count": 2, "on_loss": "restart"} if kind == "gang" else {"count": 1, "min": 1}
        try:
            job = client.submit(document={"name": name, "user": self.user, "stages": [stage]})
            self.submitted_at[name] = time.monotonic()
            self.asked[name] = Asked(kind, job)
            if kind == "scaled":
                client.scale(job, 3)
            elif kind == "killed":
                client.kill(job)
            self.done_at[name] = time.monotonic()
            self.asked[name] = Asked(kind, job, done=True)
        except fairlead.Problem:
            pass  # not answered: it may have been done or not

    def command(self, kind: str, seconds: float | None = None) -> list[str]:
        wanted = SECONDS[kind] if seconds is None else seconds
        members = 2 if kind == "gang" else 1
        program = PYTHON if self.shared else sys.executable
        return [program, "-c", SCRIPT.format(file=str(self.file), seconds=wanted, members=members)]

    def watch(self) -> None:
        """Record the epochs that agents store."""
        while not self.done.wait(0.1):
            for agent in self.agents:
                with suppress(OSError, ValueError):
                    epoch = int((agent.own / "epoch-default").read_text())
                    seen = self.epochs[agent.folder.name]
                    if not seen or seen[-1] != epoch:
                        seen.append(epoch)

    def attend(self, server: Server) -> None:
        """Record when a server leads."""
        while not self.done.wait(0.1):
            if server.leads():
                self.led.append(time.monotonic())

    def follow_one_leader(self) -> bool:
        """True if every agent has followed the leader that is the newest of all that were followed."""
        followed = [set(epochs.values()) for epochs in list(self.followed.values())]
        newest = max(max(epochs) for epochs in followed)
        return all(newest in epochs for epochs in followed)

    # Faults

    def leader(self) -> int:
        found: list[int] = []

        def led() -> bool:
            found[:] = [at for at, server in enumerate(self.servers) if server.leads()]
            return bool(found)

        until(led)
        return found[0]

    def kill(self) -> None:
        server = self.servers[self.leader()]
        server.kill()
        time.sleep(self.random.uniform(0, 2 * LEASE))
        server.start()

    def pause(self) -> None:
        process = self.servers[self.leader()].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.5, 3) * LEASE)
        process.send_signal(signal.SIGCONT)

    def cut_off(self) -> None:
        proxy = self.proxies[self.leader()]
        proxy.open = False
        proxy.cut_all()
        time.sleep(self.random.uniform(0.2, 3) * LEASE)
        proxy.open = True

    def cut_off_agents(self) -> None:
        door = self.doors[self.leader()]
        door.cut()
        time.sleep(self.random.uniform(0.2, 3) * LEASE)
        door.open = True

    def drop_answer(self) -> None:
        proxy = self.proxies[self.leader()]
        cuts = proxy.cuts
        proxy.cut_next("partition/default", before=self.random.random() < 0.5)
        deadline = time.monotonic() + 5
        while proxy.cuts == cuts and time.monotonic() < deadline:
            time.sleep(0.05)

    def kill_database(self) -> None:
        self.postgres.primary.stop(signal.SIGQUIT)
        time.sleep(self.random.uniform(0, 2 * LEASE))
        self.postgres.primary.start()

    def pause_database(self) -> None:
        self.postgres.primary.pause()
        try:
            time.sleep(self.random.uniform(0.2, 3) * LEASE)
        finally:
            self.postgres.primary.go_on()

    def promote(self) -> None:
        self.postgres.promote(self.proxies)
        for proxy in self.proxies:
            proxy.cut_all()

    def return_primary(self) -> None:
        """Promote the standby, and let the servers reach the former primary again, which runs beside it."""
        former = self.postgres.leave(self.proxies)
        for proxy in self.proxies:
            proxy.cut_all()
        self.leader()
        former.start()
        for proxy in self.proxies:
            proxy.behind = former
            proxy.cut_all()
        time.sleep(self.random.uniform(0.5, 2) * LEASE)
        for proxy in self.proxies:
            proxy.behind = self.postgres.primary
            proxy.cut_all()
        former.stop(signal.SIGQUIT)

    def set_back_clock(self) -> None:
        """Set the clock of the database back while its leader dies: all ends of leases are later then."""
        server = self.servers[self.leader()]
        server.kill()
        with psycopg.connect(self.postgres.primary.url(self.name), autocommit=True) as db:
            for table in ("reigns", "servers"):
                db.execute(f"UPDATE fairlead.{table} SET expires = expires + interval '60 s'".encode())
        began = time.monotonic()
        self.leader()
        assert time.monotonic() - began < 30
        server.start()

    def change_version(self) -> None:
        """Start an agent again with the version before, or with the present one again."""
        agent = self.random.choice(self.single)
        agent.process.kill()
        agent.process.wait()
        agent.tree = self.before if agent.tree is None else None
        agent.start()

    def kill_helper(self) -> None:
        """Kill the root helper of an agent. The agent ends, and is started again as a service manager does it."""
        agent = self.random.choice(self.shared)
        (helper,) = until(lambda: psutil.Process(agent.process.pid).children())  # it may have just been started
        helper.kill()
        assert agent.process.wait(60) == 1
        agent.start()

    def restore(self) -> None:
        """Set the data back to a backup, while agents run tasks that are lost by that."""
        backup = self.folder / f"backup{len(self.outages)}"
        url, key = self.postgres.primary.url(self.name), self.folder / "key"
        began = time.monotonic()
        fairlead_program("", "", "backup", url, str(backup), "--secrets-key", str(key))
        time.sleep(self.random.uniform(0, 3))
        stopped = time.monotonic()
        for server in self.servers:
            server.kill(signal.SIGTERM)
        fairlead_program("", "", "restore", str(backup), url, "--replace", "--secrets-key", str(key))
        self.forgive(began, time.monotonic())
        for server in self.servers:
            server.start()
        self.leader()
        self.outages.append((stopped, time.monotonic()))

    def forgive(self, began: float, ended: float) -> None:
        """Expect nothing of answers that were given between a backup and the restore of it."""
        time.sleep(0.5)  # the last answers are noted
        for name, asked in list(self.asked.items()):
            if began <= self.submitted_at.get(name, 0) <= ended:
                self.asked[name] = Asked(asked.kind)
            elif began <= self.done_at.get(name, 0) <= ended:
                self.asked[name] = asked._replace(done=False)

    def tend(self) -> None:
        """Do what operators do after a restore: let nodes take work again that ran lost tasks."""
        with fairlead.Client(self.urls, self.token) as client:
            while not self.tended.wait(1.0):
                with suppress(fairlead.Problem):
                    for node in client.nodes(state="draining"):
                        client.move_node(node.name, "enable")

    def step_clock(self) -> None:
        """Step the clock of the leader, and let another server lead, with another clock."""
        server = self.servers[self.leader()]
        server.step_clock(self.random.randint(-1_000, 1_000))
        time.sleep(0.2)
        server.kill(signal.SIGTERM)
        server.start()

    def trouble(self, faults: int, seconds: float) -> None:
        """Cause faults of all kinds in a random order, and stop when the time is over."""
        kinds: list[Callable[[], None]] = [
            *(self.kill, self.pause, self.cut_off, self.cut_off_agents),
            *(self.drop_answer, self.kill_database, self.pause_database, self.promote, self.step_clock),
            *(self.return_primary, self.set_back_clock),
            *[self.change_version] * (self.before is not None),
            *[self.kill_helper] * bool(self.shared),
            self.restore,
        ]
        order = [kinds[at % len(kinds)] for at in range(faults)]
        self.random.shuffle(order)
        deadline = time.monotonic() + seconds
        for fault in order:
            if time.monotonic() > deadline:
                return
            began = time.monotonic()
            fault()
            self.story.append((began, time.monotonic(), fault.__name__))
            self.faults[fault.__name__] += 1
            time.sleep(self.random.uniform(0, 1.0))

    # The record

    def recorded(self) -> History:
        with fairlead.Client(self.urls, self.token) as client:

            def over() -> bool:
                with suppress(fairlead.Problem):
                    left = list(client.jobs(state=["pending", "running"]))
                    for job in left:
                        if self.asked[job.name].kind == "killed":  # its kill was not answered
                            client.kill(job.id)
                            self.asked[job.name] = self.asked[job.name]._replace(done=True)
                    return not left
                return False

            until(over, 240)
            jobs = [Found(job.name, job.id, job.state) for job in client.jobs()]
        followed = {
            agent: [epoch for _, epoch in sorted(connections.items())] for agent, connections in self.followed.items()
        }
        ids = {job.job for job in jobs}
        until(lambda: ids <= {id for (id,) in self.ask("SELECT id FROM fairlead.jobs")}, 60)
        return History(self.asked, jobs, self.runs(), self.epochs, followed, self.stored())

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.primary.url(self.name)) as db:
            return db.execute(query.encode()).fetchall()

    def stored(self) -> list[Stored]:
        """Return the attempts of the history, with the time that usage counts: see `usage_report`."""
        found: list[Stored] = []
        for job, indices, attempt, outcome, started, ended, ran in self.ask(
            "SELECT job, indices, attempt, outcome, started, ended, ran FROM fairlead.attempts"
        ):
            seconds = (min(ran, ended - started) if ran and started else ran or ended - (started or ended)) / 1e6
            found += [Stored(job, index, attempt, seconds, outcome == "lost") for index in Ranges(json.loads(indices))]
        return found

    def silences(self) -> list[tuple[float, list[str]]]:
        """Return the times without a leader, the longest first, with the faults meanwhile.

        Those in which all servers were stopped are left out.
        """
        found = [
            (second - first, [name for began, ended, name in self.story if began < second and ended > first])
            for first, second in pairwise(sorted(self.led))
            if not any(began < second and ended > first for began, ended in self.outages)
        ]
        return sorted(found, reverse=True)

    def runs(self) -> list[Run]:
        """Return the runs of tasks. An attempt without an end was stopped."""
        found: list[Run] = []
        open_runs: dict[tuple[str, str, str], int] = {}
        for line in self.file.read_text().splitlines():
            what, *key, when = line.split()
            job, index, attempt = key
            if what == "start":
                open_runs[job, index, attempt] = len(found)
                found.append(Run(job, int(index), int(attempt), int(when), int(when)))
            else:
                at = open_runs[job, index, attempt]
                found[at] = found[at]._replace(end=int(when))
        return found

    def check_journal(self) -> None:
        database = self.proxies[0].url(self.database)
        with open_journal(database, read_only=True) as journal:
            assert [report.problem for report in verify(journal, lambda *_: None)] == ["", ""]
            first = journal.state_of("partition/default")[0].base
            epochs = [record.epoch for record in journal.read("partition/default", first)]
            assert epochs == sorted(epochs)
            assert all(seen[-1] <= journal.epoch("partition/default") for seen in self.epochs.values() if seen)


def history(folder: Path, seed: int, faults: int, agents: int, seconds: float = 3_600) -> Fleet:
    """Make a history with a synchronous standby, and judge it."""
    with pair(synchronous=True) as postgres, users_of(folder) as (place, users):
        fleet = Fleet(place, postgres, seed, agents, users=users)
        tending = threading.Thread(target=fleet.tend)
        try:
            threads = [threading.Thread(target=fleet.submit_on, args=(number,)) for number in range(3)]
            threads.append(threading.Thread(target=fleet.watch))
            threads += [threading.Thread(target=fleet.attend, args=(server,)) for server in fleet.servers]
            tending.start()
            for thread in threads:
                thread.start()
            try:
                until(lambda: len(fleet.followed) == agents)
                fleet.trouble(faults, seconds)
                until(fleet.follow_one_leader)
            finally:
                fleet.done.set()
                for thread in threads:
                    thread.join()
            wrong = check(fleet.recorded())
            assert not wrong, wrong
            fleet.check_journal()
            # A node knows more than the database only after a restore.
            lost = [server for server in fleet.servers if "unknown attempt" in server.log()]
            assert not lost or fleet.outages
        finally:
            fleet.tended.set()
            fleet.close()
            tending.join()
    return fleet


@contextmanager
def users_of(folder: Path) -> Iterator[tuple[Path, People | None]]:
    """Make a system user for Ann if this test is root. Return a folder that she can pass through."""
    if os.geteuid() or not Path(PYTHON).exists():
        yield folder, None
        return
    with people("ann") as found:
        yield found.folder, found


@pytest.mark.long  # each kind of fault takes about 5 s
def test_a_short_history(tmp_path: Path, postgres: Postgres) -> None:
    kinds = 12 + (extracted(tmp_path / "before") is not None) + (os.geteuid() == 0)
    fleet = history(tmp_path, seed=2, faults=kinds, agents=2)
    assert len(fleet.faults) == kinds and len(fleet.asked) > 10
    assert len(fleet.followed) == 2 and all(len(set(epochs.values())) > 1 for epochs in fleet.followed.values())


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_long_history(tmp_path: Path, postgres: Postgres) -> None:
    """At least 200 faults in half an hour. FAIRLEAD_HISTORY_SEED draws another order of faults."""
    began = time.monotonic()
    seconds = float(os.environ.get("FAIRLEAD_HISTORY_SECONDS", "1800"))
    seed = int(os.environ.get("FAIRLEAD_HISTORY_SEED", "1"))
    fleet = history(tmp_path, seed, faults=1_000, agents=10, seconds=seconds)
    took = time.monotonic() - began
    answered = sum(1 for asked in fleet.asked.values() if asked.job)
    print(f"{fleet.faults.total()} faults {dict(fleet.faults)} in {took:.0f} s, {answered} jobs answered")
    for silence, faults in fleet.silences()[:5]:
        print(f"{silence:.1f} s without a leader: {' '.join(faults)}")
    assert fleet.faults.total() >= 200 * seconds / 1_800
    assert fleet.silences()[0][0] < 10


def test_an_asynchronous_promotion_is_noticed_and_stops_nothing(tmp_path: Path, postgres: Postgres) -> None:
    with pair(synchronous=False) as databases:
        fleet = Fleet(tmp_path, databases, seed=1, agents=2, servers=1)
        try:
            with fairlead.Client(fleet.urls, fleet.token) as client:
                fleet.submit(client, "kept", "single")
                until(lambda: len(fleet.runs()) == 1)
                databases.standby.stop()
                command = fleet.command("single", seconds=20)
                lost = [client.submit(command, name=f"lost{at}", resources={"cpu": "100m"}) for at in range(4)]
                until(lambda: len(fleet.runs()) == 5)
                databases.primary.stop(signal.SIGQUIT)
                databases.standby.start()
                databases.standby.promote()
                fleet.proxies[0].behind = databases.standby
                fleet.proxies[0].cut_all()
                until(lambda: "unknown attempt" in fleet.servers[0].log())
                fleet.leader()
                until(lambda: any(node.state == "draining" for node in client.nodes()))
                health = json.load(urlopen(f"{fleet.servers[0].url}/healthz"))
                assert "not in the journal" in health["alarms"][0]
                assert client.submit(["true"], name="new") not in lost  # their numbers are not given again
            # Each of them ends by itself.
            until(lambda: sum(run.end > run.start for run in fleet.runs()) == 5)
            assert all(int((agent.own / "epoch-default").read_text()) >= LINE for agent in fleet.agents)
        finally:
            fleet.close()
