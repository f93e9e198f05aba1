"""The Kubernetes adapter inside a server. It schedules pods while this server leads their partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from fairlead.client.async_pool import Lost
from fairlead.control.control import Control
from fairlead.control.manager_link import DirectLink
from fairlead.core.errors import Refused
from fairlead.kubernetes.runner import Runner
from fairlead.kubernetes.setup import Options, Unusable, make_runner
from fairlead.server.failure import Failed

PAUSE = 5.0
"""Seconds before an adapter that ended starts again."""
LED_PAUSE = 0.5
"""Seconds between two checks whether this server leads the partition."""


class KubernetesAdapter:
    """Runs the adapter while this server leads the partition of the pods, and starts it again if it ends."""

    def __init__(
        self,
        cluster: tuple[str, Path | None, str],
        control: Control,
        log: Callable[..., None],
        registry: CollectorRegistry,
    ) -> None:
        """`cluster` is the option `kubernetes` of a server. Raise `Failed` if no adapter can be made with it."""
        kubeconfig, rules, lease = cluster
        self._options = Options(kubeconfig="" if kubeconfig == "pod" else kubeconfig, rules=rules, lease=lease)
        self._control = control
        self._log = log
        self._registry = registry
        try:
            self._make()
        except Unusable as problem:
            raise Failed(str(problem)) from problem

    async def run(self) -> None:
        while True:
            while not self._leads():
                await asyncio.sleep(LED_PAUSE)
            runner = self._make()
            self._registry.register(runner.health)
            running = asyncio.create_task(runner.run())
            try:
                while self._leads() and not running.done():
                    await asyncio.wait([running], timeout=LED_PAUSE)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                self._registry.unregister(runner.health)
            if running.cancelled():
                self._log("adapter stopped", reason="this server stands by")
            else:
                self._log("adapter ended", problem=repr(running.exception()))
                await asyncio.sleep(PAUSE)

    def _make(self) -> Runner:
        return make_runner(self._options, DirectLink(self._control, self._options.name, "", Lost), self._log)

    def _leads(self) -> bool:
        try:
            return self._control.named() in self._control.led()
        except Refused:
            return False
