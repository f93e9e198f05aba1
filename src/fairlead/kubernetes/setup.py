"""Sets up an adapter from options: as its own process, or inside the server's process."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path

import msgspec
import uvloop
import yaml

from fairlead.client.async_pool import Address, Http
from fairlead.kubernetes.actions import AT_ONCE
from fairlead.kubernetes.kubeconfig import ConfigProblem, find_address
from fairlead.kubernetes.lease import LeaseLost
from fairlead.kubernetes.names import SCHEDULER
from fairlead.kubernetes.partition_link import ApiLink, Link, Refusal
from fairlead.kubernetes.rules import Rules, RulesProblem, parse_rules
from fairlead.kubernetes.runner import Log, Runner, Settings
from fairlead.wire.addresses import parse_url

LINK_CONNECTIONS = 4


class Unusable(Exception):
    """Raised if the adapter cannot run with these options. The text says what to do."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line."""

    name: str = "kubernetes"
    partition: str = ""
    kubeconfig: str = ""
    context: str = ""
    rules: Path | None = None
    schedulers: tuple[str, ...] = (SCHEDULER,)
    lease: str = ""
    listen: str = ""
    at_once: int = AT_ONCE


def make_runner(options: Options, link: Link, log: Log) -> Runner:
    """Return the runner of an adapter with a link."""
    try:
        address, namespace = find_address(options.kubeconfig, options.context)
    except ConfigProblem as problem:
        raise Unusable(str(problem)) from None
    lease = options.lease or f"{namespace}/fairlead-{options.name}"
    if options.lease not in ("", "none") and not all(options.lease.partition("/")):
        raise Unusable(f"--lease: {options.lease} is not NAMESPACE/NAME; write it so, or `none`")
    settings = Settings(
        schedulers=options.schedulers,
        rules=Rules() if options.rules is None else _rules(options.rules),
        changed_rules=_Changes(options.rules, log),
        lease="" if options.lease == "none" else lease,
        listen=options.listen,
        at_once=options.at_once,
    )
    # A few more connections than actions may use, for conditions, events and the lease. Watches have their own.
    return Runner(Http(address, options.at_once + 8), link, settings, log)


def run(options: Options, url: str, token: str, tls: ssl.SSLContext | None, log: Log) -> None:
    """Run an adapter as its own process, until a signal or until the lease is lost."""
    try:
        _, host, port, path = parse_url(url)
    except ValueError as problem:
        raise Unusable(f"--server: {problem}") from None
    http = Http(Address(host, port, path, tls, lambda: token), LINK_CONNECTIONS)
    runner = make_runner(options, ApiLink(http, options.name, options.partition), log)

    async def serve() -> None:
        running = asyncio.create_task(runner.run(lambda: log("adapter started", name=options.name)))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            log("adapter stopped")
        finally:
            http.close()

    try:
        uvloop.run(serve())
    except* (LeaseLost, Refusal, ConfigProblem) as problems:
        raise Unusable("; ".join(str(problem) for problem in _flat(problems))) from None


def _flat(problem: BaseException) -> list[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        return [inner for part in problem.exceptions for inner in _flat(part)]
    return [problem]


class _Changes:
    """Reads the rules again when their file has changed. A file that cannot be read changes nothing."""

    def __init__(self, path: Path | None, log: Log) -> None:
        self._path = path
        self._log = log
        self._read = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        try:
            found = self._path.stat() if self._path is not None else None
        except OSError:
            found = None
        return (found.st_mtime_ns, found.st_ino) if found is not None else (0, 0)

    def __call__(self) -> Rules | None:
        stamp = self._stamp()
        if self._path is None or stamp == self._read:
            return None
        self._read = stamp
        try:
            return _rules(self._path)
        except Unusable as problem:
            self._log("rules not read again", problem=str(problem))
            return None


def _rules(path: Path) -> Rules:
    try:
        return parse_rules(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, RulesProblem) as problem:
        raise Unusable(f"{path}: {problem}") from None
