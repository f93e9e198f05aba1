"""Measures calls of functions: `python -m bench.functions [PYTHON]`, beside Dask, which PYTHON has, in the same run.

Both have two workers of one process each on this machine. Prints calls per second of a function that does nothing, the
time of a lone call, a map of 100,000 items, and 100 MB there and back.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

CALLS = 2_000
LONE = 200
ITEMS = 100_000
BYTES = 100_000_000
ROUNDS = 2

OF_DASK = """
import sys
sys.path.append(sys.argv[1])
from bench.functions import measure
if __name__ == "__main__":
    from distributed import Client
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as client:
        submit = lambda f, *given: client.submit(f, *given, pure=False)
        measure(submit, lambda f, items: client.gather(client.map(f, items, pure=False)))
"""


def nothing(number: int = 0) -> int:
    return number


def same(data: bytes) -> bytes:
    return data


def measure(submit: Callable[..., Future[Any]], run_map: Callable[[Callable[[int], int], range], Any]) -> None:
    submit(nothing).result(60)
    begun = time.perf_counter()
    for call in [submit(nothing, number) for number in range(CALLS)]:
        call.result(120)
    print(f"  {CALLS / (time.perf_counter() - begun):,.0f} calls/s", end="")
    lone = []
    for number in range(LONE):
        begun = time.perf_counter()
        submit(nothing, number).result(60)
        lone.append(1000 * (time.perf_counter() - begun))
    print(f", lone call {statistics.median(lone):.1f} ms p50, {sorted(lone)[-LONE // 50]:.1f} p98", end="")
    begun = time.perf_counter()
    assert sum(run_map(nothing, range(ITEMS))) == sum(range(ITEMS))
    print(f", map of {ITEMS:,} {time.perf_counter() - begun:.1f} s", end="")
    data = os.urandom(BYTES)
    begun = time.perf_counter()
    assert submit(same, data).result(120) == data
    print(f", {BYTES // 1_000_000} MB both ways {time.perf_counter() - begun:.1f} s", flush=True)


def main() -> None:
    import fairlead
    from tests.live import Up

    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder) / "data", "--name", "box", "--resource", "cpu=2", "--resource", "memory=4Gi")
        try:
            up.until("node", "list", said="box")
            for _ in range(ROUNDS):
                print("fairlead", end="")
                client = fairlead.Client(up.url, up.token)
                with fairlead.Executor(client, max_workers=2) as executor:
                    measure(executor.submit, executor.map)
                if len(sys.argv) > 1:
                    print("dask    ", end="", flush=True)
                    root = str(Path(__file__).parent.parent)
                    subprocess.run([sys.argv[1], "-c", OF_DASK, root], check=True, cwd=folder)
        finally:
            up.close()


if __name__ == "__main__":
    main()
