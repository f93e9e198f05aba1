"""`/healthz`, `/readyz` and `/metrics` of an adapter that runs as its own process."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fairlead.kubernetes.kubeconfig import ConfigProblem

if TYPE_CHECKING:
    from fairlead.kubernetes.runner import Runner

READ_WITHIN = 5.0


class Health(Collector):
    """Serves the health and metrics of one adapter."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.leads = False
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def missing(self) -> str:
        """Return why the adapter is not ready; empty if it is."""
        runner = self._runner
        if not self.leads:
            return "another adapter holds the lease"
        for follower in runner.followers:
            if follower.needed and not follower.synced.is_set():
                return f"the list of {follower.path} is not complete"
        return "" if runner.connected else "no connection to the Fairlead server"

    def collect(self) -> Iterable[Metric]:
        runner, adapter = self._runner, self._runner.adapter
        yield GaugeMetricFamily("fairlead_kubernetes_leads", "1 if this adapter holds the lease.", int(self.leads))
        yield GaugeMetricFamily("fairlead_kubernetes_ready", "1 if the adapter is ready.", int(not self.missing()))
        yield GaugeMetricFamily("fairlead_kubernetes_nodes", "Nodes of the cluster.", len(adapter.nodes))
        pods = GaugeMetricFamily(
            "fairlead_kubernetes_pods", "Pods scheduled by Fairlead that have not ended.", labels=["state"]
        )
        bound = sum(1 for member in adapter.members.values() if member.bound)
        placed = sum(1 for member in adapter.members.values() if member.placed and not member.bound)
        pods.add_metric(["bound"], bound)
        pods.add_metric(["placed"], placed)
        pods.add_metric(["waiting"], len(adapter.members) - bound - placed)
        yield pods
        yield GaugeMetricFamily(
            "fairlead_kubernetes_actions_waiting", "Actions on pods that wait for a call.", runner.performer.waiting()
        )
        calls = CounterMetricFamily(
            "fairlead_kubernetes_calls", "Calls to the API server about pods.", labels=["verb", "result"]
        )
        for (verb, result), count in sorted(runner.performer.counts.items()):
            calls.add_metric([verb, result], count)
        yield calls
        lists = CounterMetricFamily("fairlead_kubernetes_lists", "Complete lists that were read.", labels=["path"])
        relists: Counter[str] = Counter()
        for follower in runner.followers:
            relists[follower.path] += follower.relists
        for path, count in relists.items():
            lists.add_metric([path], count)
        yield lists

    async def serve(self, listen: str) -> None:
        """Answer requests on HOST:PORT until cancelled."""
        host, _, port = listen.rpartition(":")
        try:
            server = await asyncio.start_server(self._answer, host or "127.0.0.1", int(port))
        except (OSError, OverflowError, ValueError) as problem:
            taken = isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE
            why = "the port is used by another program" if taken else str(problem)
            raise ConfigProblem(f"--listen {listen}: {why}; name another HOST:PORT, or `none`") from None
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(READ_WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
                status, content = self._respond(head.split(b" ", 2)[1].decode(errors="replace"))
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                    f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
                    + content
                )
                await writer.drain()
        writer.close()

    def _respond(self, path: str) -> tuple[str, bytes]:
        if path == "/healthz":
            return "200 OK", b"ok\n"
        if path == "/readyz":
            missing = self.missing()
            return ("503 Service Unavailable", f"{missing}\n".encode()) if missing else ("200 OK", b"ok\n")
        if path == "/metrics":
            return "200 OK", generate_latest(self.registry)
        return "404 Not Found", b"not found\n"
