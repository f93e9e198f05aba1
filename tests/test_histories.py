"""Histories in the manner of Jepsen: servers, agents, clients and a database under faults, judged by what was recorded.

Three servers share a database, each through a proxy of its own. Clients submit single tasks and gangs; every task
writes its start and its end to a file. Meanwhile leaders are killed, paused beyond their lease, and cut off from the
database, answers to commits are dropped, and PostgreSQL itself is killed. The judges see only what clients were
answered, what tasks wrote, and the journal at the end.
"""

import getpass
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

import fairlead
from fairlead.journal.opening import open_journal
from fairlead.journal.verify import verify
from tests.postgres import Postgres, Proxy, running
from tests.servers import Agent, Server, wait_until

LEASE = 1.5
CONFIG = "partitions: {default: {ready_after: 5s}}\n"
# Two lines per task: who starts and who ends. A short line is appended at once.
SCRIPT = """
import os, time
def tell(what):
    with open({file!r}, "ab", 0) as file:
        line = f"{{what}} {{os.environ['FAIRLEAD_JOB']}} {{os.environ['FAIRLEAD_INDEX']}} "
        file.write((line + f"{{os.environ['FAIRLEAD_ATTEMPT']}} {{time.monotonic_ns()}}\\n").encode())
tell("start")
time.sleep(0.3)
tell("end")
"""

pytestmark = pytest.mark.filterwarnings("ignore::fairlead.NeverRuns")


class Fleet:
    """Everything that a history needs."""

    def __init__(self, folder: Path, postgres: Postgres, seed: int, agents: int) -> None:
        self.random = random.Random(seed)
        self.postgres = postgres
        self.database = postgres.create()
        self.file = folder / "runs"
        self.file.touch()
        (folder / "config.yaml").write_text(CONFIG)
        self.proxies: list[Proxy] = []
        self.servers: list[Server] = []
        for name in ("one", "two", "three"):
            (folder / f"p-{name}").mkdir()
            proxy = Proxy(folder / f"p-{name}", postgres)
            options = ("--lease", f"{LEASE}s", "--config", str(folder / "config.yaml"))
            self.proxies.append(proxy)
            self.servers.append(Server(folder, name, proxy.url(self.database), *options).start())
        self.token = self.servers[0].token
        self.urls = ",".join(server.url for server in self.servers)
        self.agents = [Agent(folder, f"n{at}", self.urls, self.token) for at in range(agents)]
        self.answered: dict[str, str] = {}
        """Name of a job → its id, as a client was answered."""
        self.done = threading.Event()
        self.faults: Counter[str] = Counter()

    def close(self) -> None:
        for agent in self.agents:
            agent.stop()
        for server in self.servers:
            if server.process is not None:
                server.process.send_signal(signal.SIGCONT)
                server.kill()
        for proxy in self.proxies:
            proxy.close()

    # Clients

    def submit_on(self, client_number: int) -> None:
        command = [sys.executable, "-c", SCRIPT.format(file=str(self.file))]
        number = 0
        with fairlead.Client(self.urls, self.token) as client:
            while not self.done.is_set():
                number += 1
                name = f"c{client_number}-{number}"
                stage: dict[str, object] = {"name": "main", "command": command, "resources": {"cpu": "500m"}}
                stage |= {"count": 2} if number % 3 == 0 else {}
                job = {"name": name, "user": getpass.getuser(), "stages": [stage]}
                with suppress(fairlead.Problem):  # not answered: it may have been done or not
                    self.answered[name] = client.submit(document=job)
                time.sleep(0.1)

    # Faults

    def leader(self) -> int:
        found: list[int] = []

        def led() -> bool:
            found[:] = [at for at, server in enumerate(self.servers) if server.leads()]
            return bool(found)

        wait_until(led)
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

    def drop_answer(self) -> None:
        proxy = self.proxies[self.leader()]
        cuts = proxy.cuts
        proxy.cut_next("partition/default", before=self.random.random() < 0.5)
        deadline = time.monotonic() + 5
        while proxy.cuts == cuts and time.monotonic() < deadline:
            time.sleep(0.05)

    def kill_database(self) -> None:
        self.postgres.stop(signal.SIGQUIT)
        time.sleep(self.random.uniform(0, 2 * LEASE))
        self.postgres.start()

    def give_up(self) -> None:
        server = self.servers[self.leader()]
        server.kill(signal.SIGTERM)
        server.start()

    def trouble(self, faults: int) -> None:
        kinds: list[Callable[[], None]] = [
            self.kill,
            self.pause,
            self.cut_off,
            self.drop_answer,
            self.kill_database,
            self.give_up,
        ]
        order = [kinds[at % len(kinds)] for at in range(faults)]
        self.random.shuffle(order)
        for fault in order:
            fault()
            self.faults[fault.__name__] += 1
            time.sleep(self.random.uniform(0, 1.0))

    # The judges

    def judge(self) -> None:
        with fairlead.Client(self.urls, self.token) as client:
            wait_until(lambda: not list(client.jobs(state=["pending", "running"])), 180)
            jobs = {job.id: job for job in client.jobs()}
        names = Counter(job.name for job in jobs.values())
        lost = [name for name, job in self.answered.items() if job not in jobs or jobs[job].name != name]
        assert not lost, f"answered and lost: {lost}"
        assert names.most_common(1)[0][1] == 1, "a submission took effect twice"
        failed = [job.name for job in jobs.values() if job.state != "succeeded"]
        assert not failed
        spans: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        for (job, index, attempt), (start, end) in self.runs().items():
            spans[job, index].append((start, end, attempt))
        for task, runs in spans.items():
            runs.sort()
            for (_, end, _), (start, _, _) in pairwise(runs):
                assert end <= start, f"task {task} ran twice at a time: {runs}"
            assert [attempt for _, _, attempt in runs] == sorted(attempt for _, _, attempt in runs)
        for job in jobs.values():
            tasks = [index for number, index in spans if number == job.id]
            assert len(tasks) == (2 if int(job.name.partition("-")[2]) % 3 == 0 else 1), f"gang {job.name} is not whole"
        with open_journal(self.database, read_only=True) as journal:
            assert [report.problem for report in verify(journal, lambda *_: None)] == ["", ""]
            epochs = [record.epoch for record in journal.read("partition/default")]
            assert epochs == sorted(epochs)
            last = journal.epoch("partition/default")
        for agent in self.agents:
            assert int((agent.folder / "epoch-default").read_text()) <= last

    def runs(self) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Return start and end of each attempt of each task. An attempt without an end was stopped."""
        found: dict[tuple[str, int, int], tuple[int, int]] = {}
        for line in self.file.read_text().splitlines():
            what, job, index, attempt, when = line.split()
            key, at = (job, int(index), int(attempt)), int(when)
            if what == "start":
                assert key not in found, f"attempt {key} was started twice"
                found[key] = (at, at)
            else:
                found[key] = (found[key][0], at)
        return found


def history(folder: Path, seed: int, faults: int, agents: int) -> Fleet:
    with running(durable=True) as postgres:
        fleet = Fleet(folder, postgres, seed, agents)
        try:
            clients = [threading.Thread(target=fleet.submit_on, args=(number,)) for number in range(3)]
            for client in clients:
                client.start()
            try:
                fleet.trouble(faults)
            finally:
                fleet.done.set()
                for client in clients:
                    client.join()
            fleet.judge()
        finally:
            fleet.close()
    return fleet


def test_a_short_history(tmp_path: Path, postgres: Postgres) -> None:
    fleet = history(tmp_path, seed=1, faults=6, agents=2)
    assert len(fleet.faults) == 6 and len(fleet.answered) > 10


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(10))
def test_long_histories(tmp_path: Path, postgres: Postgres, seed: int) -> None:
    fleet = history(tmp_path, seed, faults=21, agents=10)
    print(dict(fleet.faults), len(fleet.answered))
