"""The web page: the server's cost of open pages, the speed of finding jobs, and frames of a map of 10,000 nodes.

`python -m bench.page [SCALE]` runs it, in about two minutes. It needs Chromium and the built page.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import httpx
import psutil

from bench.harness import HEAD, ROOT, Row, line
from tests.web.browser import missing, running
from tests.web.fleet import node_documents

NODES, JOBS, PAGES = 10_000, 100_000, 100
SECONDS = 15.0
FRAMES = """async () => {
  const tasks = [];
  const observer = new PerformanceObserver(list => tasks.push(...list.getEntries().map(entry => entry.duration)));
  observer.observe({entryTypes: ['longtask']});
  const canvas = document.querySelector('canvas');
  const box = canvas.getBoundingClientRect();
  const send = (kind, x, y) => canvas.dispatchEvent(new PointerEvent(kind, {clientX: box.left + x, clientY: box.top + y,
    pointerId: 1, pointerType: 'pen', bubbles: true}));
  const next = () => new Promise(done => requestAnimationFrame(done));
  send('pointerdown', 600, 300);
  const frames = [];
  let before = await next();
  for (let at = 0; at < 120; at++) {
    send('pointermove', 600 - 3 * at, 300 - at);
    const now = await next();
    frames.push(now - before);
    before = now;
  }
  send('pointerup', 240, 180);
  await new Promise(done => setTimeout(done, 200));
  return {frames, tasks};
}"""


async def with_pages(url: str, token: str, nodes: int, pages: int, pid: int) -> tuple[float, int]:
    """Return the part of a core that the server uses while nodes change every second, and the messages to pages."""
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=None)
    messages: list[int] = []
    last = [document["name"] for document in node_documents(nodes)[-10:]]
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=60, limits=limits) as client:

        async def page() -> None:
            at = (await client.get("/map")).json()["at"]
            async with client.stream("GET", "/live", params={"after": at}) as stream:
                async for _ in stream.aiter_raw():
                    messages.append(1)

        opened = [asyncio.create_task(page()) for _ in range(pages)]
        await asyncio.sleep(8)
        server = psutil.Process(pid)
        began, busy = perf_counter(), sum(server.cpu_times()[:2])
        number = 0
        while perf_counter() - began < SECONDS:
            number += 1
            for node in range(10):
                action = "drain" if number % 2 else "enable"
                answer = await client.post(f"/nodes/{last[node]}/{action}")
                answer.raise_for_status()
            await asyncio.sleep(1)
        part = (sum(server.cpu_times()[:2]) - busy) / (perf_counter() - began)
        for task in opened:
            task.cancel()
        await asyncio.gather(*opened, return_exceptions=True)
        return part, len(messages)


def found(client: httpx.Client, jobs: int) -> Iterator[Row]:
    stage = {"resources": {"cpu": 4}}  # the queue is at its limit, so all of these jobs wait
    for start in range(0, jobs, 5_000):
        documents = [
            {"name": f"job-{at}", "queue": "root.ci", "stages": [stage]}
            for at in range(start, min(jobs, start + 5_000))
        ]
        client.post("/jobs/batch", json={"jobs": documents}).raise_for_status()
    searches = {
        "by a part of a name that one job has": {"search": f"job-{jobs // 3}"},
        "by a name that none has": {"search": "no-such"},
        "by state, the newest 100": {"state": "pending"},
    }
    for what, params in searches.items():
        times = []
        for _ in range(5):
            began = perf_counter()
            client.get("/jobs", params=params).raise_for_status()
            times.append(perf_counter() - began)
        yield Row(f"{jobs:,} jobs filtered {what}", 1000 * median(times), "ms", 200)


def page(scale: float) -> Iterator[Row]:
    nodes, jobs = max(40, int(NODES * scale)), max(100, int(JOBS * scale))
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.web.fleet", str(nodes), "600"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert server.stdout is not None
        url, _, token = server.stdout.readline().strip().partition("/#token=")
        with running() as browser:
            tab = browser.new_page(viewport={"width": 1440, "height": 900})
            tab.goto(f"{url}/#token={token}")
            drawn = "() => Number(document.querySelector('canvas')?.dataset.cell) > 3"
            tab.wait_for_function(drawn)
            times = []
            for _ in range(3):
                tab.reload()
                tab.wait_for_function(drawn, polling="raf")
                times.append(tab.evaluate("() => performance.now()"))
            yield Row(f"first view of {nodes:,} nodes, from a reload", median(times) / 1000, "s", 1)
            for _ in range(2):
                tab.get_by_role("button", name="Zoom in").click()
            measured = tab.evaluate(FRAMES)
            longest = max(measured["tasks"], default=0.0)
            frames = sorted(measured["frames"])
            note = f"120 frames, median {median(frames):.0f} ms, longest {frames[-1]:.0f} ms between two"
            yield Row("longest task of the page while the map is moved", max(1.0, longest), "ms", 50, note=note)
            tab.close()
        (idle, _), (busy, sent) = (
            asyncio.run(with_pages(url, token, nodes, pages, server.pid)) for pages in (0, PAGES)
        )
        note = f"{100 * idle:.1f} % without pages, {100 * busy:.1f} % with them; {sent:,} messages"
        yield Row(f"{PAGES} open pages", max(0.01, 100 * (busy - idle)), "% of a core", 5, note=note)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=120) as client:
            yield from found(client, jobs)
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    if missing():
        raise SystemExit(missing())
    print(HEAD, flush=True)
    for row in page(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print(line(row), flush=True)
