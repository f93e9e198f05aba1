"""`fairlead bench`: how fast the server at hand is, from submit to end, with the real thing."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fairlead.cli.options import AsJson, Partition, ask_as
from fairlead.cli.output import asking, print_json


@asking
def bench(
    tasks: Annotated[int, typer.Option(help="How many tasks of /bin/true.", min=1)] = 1_000,
    singles: Annotated[int, typer.Option(help="How many jobs one after the other, for their latency.", min=1)] = 50,
    cpu: Annotated[str, typer.Option(help="CPUs of each task.")] = "1",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Measure tasks a second of an array, and how long a single job takes from submit to start."""
    with ask_as(partition) as client:
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
        with typer.progressbar(length=tasks, label="tasks", hidden=as_json) as bar:
            done = 0
            while True:
                found = client.job(job)
                ended = sum(sum(each.ended.values()) for each in found.stages)
                bar.update(ended - done)
                done = ended
                if found.over:
                    break
                time.sleep(0.02)
        seconds = (found.ended or 0.0) - found.submitted
    waits.sort()
    result = {
        "tasks_per_second": round(tasks / seconds, 1),
        "durable_answer_ms_p50": round(1_000 * waits[len(waits) // 2], 2),
        "durable_answer_ms_p99": round(1_000 * waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2),
    }
    if as_json:
        print_json(result)
        return
    typer.echo(f"{tasks} tasks in {seconds:.2f} s: {result['tasks_per_second']} a second")
    typer.echo(
        f"answer to a submit: p50 {result['durable_answer_ms_p50']} ms, p99 {result['durable_answer_ms_p99']} ms"
    )
