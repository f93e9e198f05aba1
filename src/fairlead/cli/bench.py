"""`fairlead bench`: measure a running server from submit to end, with real tasks."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fairlead.cli.options import Common


def bench(
    *,
    tasks: Annotated[int, typer.Option(help="Number of tasks of the array; each runs /bin/true.", min=1)] = 1_000,
    singles: Annotated[
        int, typer.Option(help="Number of jobs to submit one after the other, to measure the answers.", min=1)
    ] = 50,
    cpu: Annotated[str, typer.Option(help="CPUs of each task.")] = "1",
    common: Common,
) -> None:
    """Measure the speed of a running server.

    It submits jobs that do nothing, and prints how many tasks of an array run per second, and how long the server
    takes to answer a submission.
    """
    with common.client() as client:
        stage = {"command": ["/bin/true"], "resources": {"cpu": cpu}}
        waits: list[float] = []
        for _ in range(singles):
            began = time.perf_counter()
            job = client.submit(document={"name": "bench", "stages": [stage]})
            answered = time.perf_counter() - began
            client.wait(job)
            waits.append(answered)
        began = time.perf_counter()
        job = client.submit(document={"name": "bench", "stages": [{**stage, "count": tasks, "min": 1}]})
        with typer.progressbar(length=tasks, label="tasks", hidden=common.as_json) as bar:
            done = 0
            while True:
                view = client.job(job)
                ended = sum(sum(stage.ended.values()) for stage in view.stages)
                bar.update(ended - done)
                done = ended
                if view.over:
                    break
                time.sleep(0.02)
        seconds = (view.ended or 0.0) - view.submitted
    waits.sort()
    result = {
        "tasks_per_second": round(tasks / seconds, 1),
        "durable_answer_ms_p50": round(1_000 * waits[len(waits) // 2], 2),
        "durable_answer_ms_p99": round(1_000 * waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2),
    }
    common.show(
        result,
        [
            f"{tasks} tasks in {seconds:.2f} s: {result['tasks_per_second']} a second",
            f"answer to a submit: p50 {result['durable_answer_ms_p50']} ms, p99 {result['durable_answer_ms_p99']} ms",
        ],
    )
