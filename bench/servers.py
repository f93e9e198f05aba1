"""Servers on PostgreSQL: submits per second compared with SQLite, the time of a change of leader, and the gain of
partitions on one and on two servers.

    python -m bench.servers [--trials 20] [--seconds 8] [submits] [failover] [recovery] [partitions]

It starts its own PostgreSQL, with its data on the same disk as the files of SQLite and with default settings.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import fairlead
from bench.harness import in_child
from bench.recovery import prepare, recover_database
from fairlead.journal.locate import open_journal
from fairlead.journal.stream_copy import copy_journal
from tests.postgres import Postgres, running
from tests.servers import Server
from tests.until import until

ROUNDS = 3
LEASE = "3s"
NODES, RUNNING = 10_000, 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.servers", description=__doc__)
    parser.add_argument("what", nargs="*", default=["submits", "failover", "recovery", "partitions"])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", fairlead.NeverRuns)
    with tempfile.TemporaryDirectory() as folder, running(durable=True, on_disk=True) as postgres:
        if "submits" in options.what:
            submits(Path(folder), postgres, options.seconds)
        if "failover" in options.what:
            failover(Path(folder), postgres, options.trials)
        if "recovery" in options.what:
            recovery(Path(folder), postgres)
        if "partitions" in options.what:
            partitions(Path(folder), postgres, options.seconds)
    return 0


def submits(folder: Path, postgres: Postgres, seconds: float) -> None:
    """Print the submits per second on both databases, in turns."""
    servers = {"SQLite": Server(folder, "files", ""), "PostgreSQL": Server(folder, "rows", postgres.create())}
    for server in servers.values():
        server.start()
    try:
        for clients in (1, 16):
            rates: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(ROUNDS):
                for name, server in servers.items():
                    rates[name].append(_rate(server, clients, seconds))
            figures = {name: median(values) for name, values in rates.items()}
            spread = "; ".join(f"{name} {min(values):.0f} to {max(values):.0f}" for name, values in rates.items())
            part = figures["PostgreSQL"] / figures["SQLite"]
            print(
                f"submits per second, {clients} clients: {spread}; PostgreSQL reaches {part:.0%} of SQLite", flush=True
            )
    finally:
        for server in servers.values():
            server.kill()


def _rate(server: Server, clients: int, seconds: float) -> float:
    counts = [0] * clients
    end = time.monotonic() + seconds

    def work(at: int) -> None:
        with server.client() as client:
            while time.monotonic() < end:
                client.submit(["true"])
                counts[at] += 1

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(at,)) for at in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def failover(folder: Path, postgres: Postgres, trials: int) -> None:
    """Print the seconds from the end of a leader until the next one has answered a submit."""
    database = postgres.create()
    pair = [Server(folder, name, database, "--lease", LEASE).start() for name in ("one", "two")]
    try:
        for how, count in ((signal.SIGKILL, trials), (signal.SIGTERM, max(3, trials // 4))):
            times = sorted(_one_failover(pair, how) for _ in range(count))
            print(
                f"change of leader, lease {LEASE}, {how.name}, {count} times: p50 {median(times):.2f} s, "
                f"p99 {times[min(count - 1, count * 99 // 100)]:.2f} s, from {times[0]:.2f} to {times[-1]:.2f} s",
                flush=True,
            )
    finally:
        for server in pair:
            server.kill()


def recovery(folder: Path, postgres: Postgres) -> None:
    """Print the seconds that a server takes to recover a large partition from the database."""
    made = in_child(prepare, str(folder), NODES, RUNNING, 1_000, 10_000)
    database = postgres.create()
    with open_journal(folder / "journal", read_only=True) as source, open_journal(database) as target:
        copy_journal(source, target, lambda stream, count: None)
    took = in_child(recover_database, database)["seconds"]
    size = f"{NODES:,} nodes, {made['running']:,.0f} running tasks, snapshot of {made['snapshot'] / 2**20:.0f} MiB"
    print(f"recovery from PostgreSQL: {took:.2f} s ({size}, 10,000 changes behind it)", flush=True)


def partitions(folder: Path, postgres: Postgres, seconds: float) -> None:
    """Print the jobs per second of four clients: in one partition, in four, and in four on two servers."""
    names = ["a", "b", "c", "d"]
    first = folder / "four.yaml"
    first.write_text(json.dumps({"partitions": {name: {"queues": {"root": {"q": {}}}} for name in names}}))
    database = postgres.create()
    one = Server(folder, "first", database, "--config", str(first)).start()
    two = Server(folder, "second", database)
    rates: dict[str, list[float]] = {}
    try:
        for _ in range(ROUNDS):
            rates.setdefault("one partition, one server", []).append(_jobs_rate([one], ["a"] * 4, seconds))
            rates.setdefault("four partitions, one server", []).append(_jobs_rate([one], names, seconds))
            two.start()
            until(lambda: (len(one.led()), len(two.led())) == (2, 2))
            rates.setdefault("four partitions, two servers", []).append(_jobs_rate([one, two], names, seconds))
            two.kill(signal.SIGTERM)
            until(lambda: len(one.led()) == 4)
    finally:
        for server in (one, two):
            server.kill()
    base = median(rates["one partition, one server"])
    for what, values in rates.items():
        part = median(values) / base
        print(f"jobs per second, {what}: {min(values):.0f} to {max(values):.0f}, {part:.2f} times one", flush=True)


def _jobs_rate(servers: list[Server], names: list[str], seconds: float) -> float:
    """Return the jobs per second that one process per name submits, in requests of 100."""
    urls = ",".join(server.url for server in servers)
    with ProcessPoolExecutor(len(names), get_context("spawn")) as clients:
        given = [(urls, servers[0].token, name, seconds) for name in names]
        return sum(clients.map(_submit_for, given))


def _submit_for(given: tuple[str, str, str, float]) -> float:
    urls, token, partition, seconds = given
    warnings.simplefilter("ignore", fairlead.NeverRuns)
    count = 0
    job = {"queue": "root.q", "stages": [{"command": ["true"]}]}
    with fairlead.Client(urls, token, partition=partition) as client:
        client.submit_many([job])  # finds the leader
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            count += len(client.submit_many([job] * 100))
        return count / (time.monotonic() - began)


def _one_failover(pair: list[Server], how: signal.Signals) -> float:
    until(lambda: any(server.leads() for server in pair))
    leader, standby = sorted(pair, key=lambda server: not server.leads())
    with leader.client() as client:
        client.submit(["true"])
    assert leader.process is not None
    began = time.monotonic()
    leader.process.send_signal(how)
    with standby.client() as client:
        until(standby.leads)  # the client itself would pause between attempts
        client.submit(["true"])
    took = time.monotonic() - began
    leader.process.wait(60)
    leader.process = None
    leader.start()
    return took


if __name__ == "__main__":
    sys.exit(main())
