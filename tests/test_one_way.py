"""A network that drops what goes one way: no two attempts of a task run at once, with the shortest lease allowed."""

import json
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.network import TcpProxy, Watch
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


@pytest.mark.parametrize("to_server", [True, False], ids=["to the server", "to the agent"])
def test_attempts_do_not_overlap_when_one_direction_is_lost(tmp_path: Path, to_server: bool) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    file = tmp_path / "ran"
    server = Server(tmp_path, "server", "", "--config", str(tmp_path / "config.yaml")).start()
    door = OneWay(int(server.url.rpartition(":")[2]), to_server)
    agents: list[Agent] = []

    def ran() -> dict[int, list[float]]:
        times: dict[int, list[float]] = defaultdict(list)
        for line in file.read_text().splitlines(keepends=True) if file.exists() else []:
            if line.endswith("\n"):
                attempt, when = line.split()
                times[int(attempt)].append(float(when))
        return times

    try:
        agents.append(Agent(tmp_path, "n0", server.url, server.token, doors=door.url))
        with server.client() as client:
            command = ["/bin/sh", "-c", SCRIPT.format(file=file)]
            client.submit(command, resources={"cpu": "100m"})
            until(lambda: len(ran().get(1, [])) > 10)
            agents.append(Agent(tmp_path, "n1", server.url, server.token))
            until(lambda: len(list(client.nodes())) == 2)
            time.sleep(1.5)  # at least one more heartbeat is answered
            door.flows.clear()
            until(lambda: len(ran()) > 1)
            time.sleep(2)
        last, first = max(ran()[1]), min(ran()[2])
        assert last < first, f"both ran for {last - first:.1f} s"
        print(f"{first - last:.1f} s between the attempts")
    finally:
        door.flows.set()
        for agent in agents:
            agent.stop()
        server.kill()
        door.close()
