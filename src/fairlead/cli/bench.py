"""`fairlead bench`: measure a running server from submit to end, with real tasks."""

from __future__ import annotations

import time

import typer

from fairlead.cli.options import Common
from fairlead.cli.typer_commands import option


class BenchOptions(Common):
    tasks: int = option("Number of tasks of the array. Each task runs /bin/true.", default=1_000, min=1)
    singles: int = option(
        "Number of jobs to submit one after the other, to measure how long an answer takes.", default=50, min=1
    )
    cpu: str = option("CPUs of each task.", default="1")


def bench(options: BenchOptions) -> None:
    """Measure the speed of a running server.

    The command submits jobs that do nothing. It prints how many tasks of an array run per second, and how long the
    server takes to answer a submission.
    """
    with options.client() as client:
        stage = {"command": ["/bin/true"], "resources": {"cpu": options.cpu}}
        waits: list[float] = []
        for _ in range(options.singles):
            began = time.perf_counter()
            job = client.submit(document={"name": "bench", "stages": [stage]})
            answered = time.perf_counter() - began
            client.wait(job)
            waits.append(answered)
        began = time.perf_counter()
        job = client.submit(document={"name": "bench", "stages": [{**stage, "count": options.tasks, "min": 1}]})
        with typer.progressbar(length=options.tasks, label="tasks", hidden=options.as_json) as bar:
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
        "tasks_per_second": round(options.tasks / seconds, 1),
        "durable_answer_ms_p50": round(1_000 * waits[len(waits) // 2], 2),
        "durable_answer_ms_p99": round(1_000 * waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2),
    }
    options.show(
        result,
        [
            f"{options.tasks} tasks in {seconds:.2f} s: {result['tasks_per_second']} a second",
            f"answer to a submit: p50 {result['durable_answer_ms_p50']} ms, p99 {result['durable_answer_ms_p99']} ms",
        ],
    )
