"""A real server for tests: the control plane and the API on a free port, in a thread with a loop of its own.

Nodes are added and ends of tasks are reported by commands, so that each test decides what happens when.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from fairlead.control.control import Control
from fairlead.control.dependencies import Dependencies
from fairlead.control.quotas import Quotas
from fairlead.core.commands import AddNode, Command, Report
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_node
from fairlead.core.effects import ForNode, Launch
from fairlead.engines.agent_connections import LedPartition
from fairlead.engines.agents import Agents
from fairlead.forecast.previewer import Previewer
from fairlead.history.promised_starts import PromisedStarts
from fairlead.history.recorder import HistoryRecorder
from fairlead.history.store import History
from fairlead.http.application import application
from fairlead.http.context import Services
from fairlead.http.listener import listen
from fairlead.http.middleware import Bounds
from fairlead.http.server import server
from fairlead.identity.node_keys import Identities
from fairlead.identity.secrets import Secrets
from fairlead.identity.tokens import Tokens
from fairlead.journal import Journal, SqliteJournal
from fairlead.pools.pool_service import PoolService
from fairlead.views.metrics.metrics import Metrics
from fairlead.wire.api import Role

Result = TypeVar("Result")
SECONDS = 30  # the longest wait of a test; no result depends on it


class Orders(Agents):
    """The hub, which also records its messages."""

    def __init__(self, identities: Identities) -> None:
        super().__init__(identities, lambda event, fields: self.log_lines.append((event, fields)))
        self.log_lines: list[tuple[str, dict[str, Any]]] = []
        self.launches: dict[tuple[str, str, int], tuple[str, Launch]] = {}
        self.messages: list[ForNode] = []

    def _refuse(self, led: LedPartition, message: ForNode) -> None:
        """Nodes here have no agents: the test sends their reports."""

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        super().dispatch(partition, messages)
        self.messages += messages
        for message in messages:
            for launch in message.launches:
                self.launches[launch.job, launch.stage, launch.attempt] = (message.node, launch)


class Serving:
    """A running server. `as_owner` is a client with the role of an administrator."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any] | None = None,
        bounds: Bounds | None = None,
        open_journal: Callable[[], Journal] | None = None,
        pools: PoolService | None = None,
        hub: type[Orders] = Orders,
    ) -> None:
        self.folder = folder
        self.faults: list[Exception] = []
        self.notes: list[str] = []
        self.tokens = Tokens(folder / "tokens")
        self.identities = Identities(folder, self.tokens)
        self.orders = hub(self.identities)
        self.owner = self.tokens.standing(folder / "token", "owner", "admin", "owner", "")
        self._config = parse_config({"partitions": {"default": {}}} if config is None else config)
        self._bounds = bounds or Bounds()
        self._pools = pools or PoolService()
        self.log: list[tuple[str, dict[str, Any]]] = []
        self._open = open_journal or (lambda: SqliteJournal(folder / "journal", synchronous="off"))
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._main(),), daemon=True)
        self._thread.start()
        assert self._up.wait(SECONDS)
        self.as_owner = self.client(self.owner)

    def client(self, secret: str | None = None) -> httpx.Client:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS)

    def token(self, role: Role, user: str, groups: tuple[str, ...] = ()) -> str:
        return self.join_token().partition(".")[0] if role == "join" else self.tokens.create(role, user, groups)[0]

    def join_token(self, node: str = "", **more: Any) -> str:
        return self.identities.invite((node,), **more)[0][0]

    def as_user(self, user: str, role: Role = "user", groups: tuple[str, ...] = ()) -> httpx.Client:
        return self.client(self.token(role, user, groups))

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def tell(self, command: Command, partition: str = "") -> Any:
        async def execute() -> Any:
            return await self.control.find(partition).execute(command)

        return self.do(execute())

    def node(self, name: str, cpu: int = 4, partition: str = "", **more: Any) -> None:
        _, spec = parse_node({"name": name, "resources": {"cpu": cpu, "memory": "8Gi"}, **more})
        self.tell(AddNode(name=name, spec=spec, operator=True), partition)

    def report(self, job: str, state: Any, stage: str = "main", attempt: int = 1, exit_code: int | None = None) -> None:
        node, launch = self.orders.launches[job, stage, attempt]
        self.tell(
            Report(
                node=node,
                job=job,
                stage=stage,
                indices=launch.indices,
                attempt=attempt,
                state=state,
                exit_code=exit_code,
                number=launch.number,
                operator=True,
            )
        )

    def close(self) -> None:
        self.as_owner.close()
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _main(self) -> None:
        self._closing = asyncio.Event()
        metrics = Metrics()
        self.secrets = Secrets(self.folder / "secrets", self.folder / "secrets-key")
        self.history = History(self.folder / "history")
        quotas = Quotas()
        promised = PromisedStarts(self.history, metrics.registry)
        observers = [metrics, promised, HistoryRecorder(self.history), quotas]
        self.control = Control(
            Dependencies(
                self._open,
                self.orders,
                observers,
                self._config,
                note=self.notes.append,
                inform=self.notes.append,
                pools=self._pools,
            )
        )
        await self.control.start()
        preview = Previewer(self.folder / "journal", self.folder / "history")
        self.site = Services(
            self.control,
            self.orders,
            self.history,
            self.tokens,
            self.identities,
            self.secrets,
            metrics,
            self._bounds,
            quotas,
            promised,
            "test",
            self._fault,
            lambda event, fields: self.log.append((event, fields)),
            preview=preview,
        )
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        gate = application(self.site)
        self.connections = gate.connections
        http = server(gate)
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        while not http.started:
            await asyncio.sleep(0.001)
        self._up.set()
        await self._closing.wait()
        http.should_exit = True
        await serving
        await preview.close()
        await self.control.close()
        self.history.close()

    def _fault(self, error: Exception) -> None:
        traceback.print_exception(error)
        self.faults.append(error)


@contextmanager
def serving(folder: Path, *args: Any, **kwargs: Any) -> Iterator[Serving]:
    """A server that is closed at the end, and must not have had a fault."""
    found = Serving(folder, *args, **kwargs)
    try:
        yield found
    finally:
        found.close()
    assert not found.faults


JOB = {"stages": [{"command": ["true"], "resources": {"cpu": 1}}]}


def submit(client: httpx.Client, document: dict[str, Any] | None = None, **params: Any) -> str:
    answer = client.post("/api/v1/jobs", json=JOB if document is None else document, params=params)
    assert answer.status_code == 201, answer.text
    job: str = answer.json()["job"]
    return job
