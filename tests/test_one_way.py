"""No two attempts of a task run at once with the shortest lease, though the network or a node does half of its work."""

import json
import pwd
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.network import TcpProxy, Watch
from tests.people import needs_root, people
from tests.servers import Agent, Server
from tests.until import until

CONFIG = {"partitions": {"default": {"heartbeat": "1s", "lease": "3s", "ready_after": "3s", "preempt_grace": "2s"}}}
# It writes every 20 ms that it runs, and goes on when it is asked to end.
SCRIPT = """
trap '' TERM
while true; do echo $FAIRLEAD_ATTEMPT $(date +%s.%N) >> {file}; sleep 0.02; done
"""


class OneWay(TcpProxy):
    """A port in front of a server, where one of both directions can be stalled."""

    def __init__(self, behind: int, to_server: bool) -> None:
        self.flows = threading.Event()
        self.flows.set()
        self._to_server = to_server
        super().__init__(behind)

    def watches(self) -> tuple[Watch, Watch]:
        def stall(data: bytes) -> None:
            self.flows.wait()

        def pass_on(data: bytes) -> None:
            pass

        return (stall, pass_on) if self._to_server else (pass_on, stall)


class Ran:
    """What the attempts of a task wrote."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ran"
        self._file.touch()
        self._file.chmod(0o666)
        self.command = ["/bin/sh", "-c", SCRIPT.format(file=self._file)]

    def times(self) -> list[list[float]]:
        """Return the times at which each attempt ran, by attempt."""
        times: dict[int, list[float]] = defaultdict(list)
        for line in self._file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                attempt, when = line.split()
                times[int(attempt)].append(float(when))
        return [times[attempt] for attempt in sorted(times)]

    def check(self) -> None:
        """Wait until the second attempt runs, and check that the first has ended before."""
        until(lambda: len(self.times()) > 1)
        time.sleep(2)
        first, second = self.times()[:2]
        print(f"{min(second) - max(first):.1f} s between the attempts")
        assert max(first) < min(second)


@pytest.mark.parametrize("to_server", [True, False], ids=["to the server", "to the agent"])
def test_attempts_do_not_overlap_when_one_direction_is_lost(tmp_path: Path, to_server: bool) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    ran = Ran(tmp_path)
    server = Server(tmp_path, "server", "", "--config", str(tmp_path / "config.yaml")).start()
    door = OneWay(int(server.url.rpartition(":")[2]), to_server)
    agents: list[Agent] = []
    try:
        agents.append(Agent(tmp_path, "n0", server.url, server.token, doors=door.url))
        with server.client() as client:
            client.submit(ran.command, resources={"cpu": "100m"})
            until(lambda: len(ran.times()[:1]) and len(ran.times()[0]) > 10)
            agents.append(Agent(tmp_path, "n1", server.url, server.token))
            until(lambda: len(list(client.nodes())) == 2)
            time.sleep(1.5)  # at least one more heartbeat is answered
            door.flows.clear()
            ran.check()
    finally:
        door.flows.set()
        for agent in agents:
            agent.stop()
        server.kill()
        door.close()


@needs_root
def test_attempts_do_not_overlap_when_all_processes_of_a_node_are_suspended() -> None:
    """The agent, the spawner and its guard stop at once. Only the keeper, which is root's, goes on.

    It ended the tasks three seconds after their lease, and the server waited for a heartbeat.
    """
    short = {"partitions": {"default": CONFIG["partitions"]["default"] | {"heartbeat": "500ms", "lease": "1500ms"}}}
    with people("ann") as users:
        folder = users.folder
        (folder / "config.yaml").write_text(json.dumps(short))
        ran = Ran(folder)
        server = Server(folder, "server", "", "--config", str(folder / "config.yaml")).start()
        agents: list[Agent] = []
        stopped: list[psutil.Process] = []
        try:
            agents.append(Agent(folder, "n0", server.url, server.token, users=users))
            with server.client() as client:
                document = {"user": "ann", "stages": [{"command": ran.command, "resources": {"cpu": "100m"}}]}
                client.submit(document=document)
                until(lambda: len(ran.times()[:1]) and len(ran.times()[0]) > 10)
                agents.append(Agent(folder, "n1", server.url, server.token, user="ann"))
                until(lambda: len(list(client.nodes())) == 2)
                agent = psutil.Process(agents[0].process.pid)
                uid = pwd.getpwnam(users.names["ann"]).pw_uid
                below = [each for each in agent.children(recursive=True) if each.uids().real == uid]
                stopped = [agent, *(each for each in below if "python" in each.name())]
                assert len(stopped) == 3  # the agent, a spawner, and its guard
                for each in stopped:
                    each.suspend()
                ran.check()
        finally:
            for each in stopped:
                with suppress(psutil.Error):
                    each.resume()
            for one in agents:
                one.stop()
            server.kill()
