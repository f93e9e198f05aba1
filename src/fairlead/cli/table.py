"""`fairlead table`: the tasks of a job with their parameters, times and the last line of their output."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fairlead.cli.options import Common, JobName
from fairlead.cli.output import lasted, print_json, print_table, say_cut

if TYPE_CHECKING:
    from fairlead.wire import api as wire

WIDEST = 120
"""Characters of a last line that are shown."""


def table(
    job: JobName,
    *,
    stage: Annotated[str, typer.Option(help="Only the tasks of this stage.")] = "",
    stream: Annotated[
        Literal["out", "err", "none"], typer.Option(help="Stream of which the last line is shown; none for no line.")
    ] = "out",
    limit: Annotated[int, typer.Option(help="Largest number of tasks to list.", min=1)] = 1_000,
    common: Common,
) -> None:
    """Show the tasks of a job as a table: the parameters of a sweep, states, times, and the last line of their output.

    A task that prints its result in its last line thus shows it here: fairlead submit --grid lr=1,.3 -- python
    trial.py --lr {lr}
    """
    from fairlead.wire import operations as op

    rows: list[wire.TableRow] = []
    names: list[str] = []
    cut = False
    with common.client() as client:
        asked = op.Table(job=job, stage=stage, stream=None if stream == "none" else stream, limit=min(limit, 200))
        for page in client.pages(asked):
            names = page.parameters
            rows += page.rows
            if len(rows) >= limit:
                cut = len(rows) > limit or bool(page.next)
                rows = rows[:limit]
                break
    if common.as_json:
        print_json({"parameters": names, "rows": rows})
        return
    if cut:
        say_cut(limit, "tasks")
    several = len({row.stage for row in rows}) > 1
    headings = ["TASK", *names, "STATE", "RAN", "EXIT", *(["LAST LINE"] if stream != "none" else [])]
    print_table(
        headings,
        [
            [
                f"{row.stage}[{row.index}]" if several else row.index,
                *(row.parameters.get(name, "") for name in names),
                row.state,
                _ran(row),
                "" if row.exit_code is None else row.exit_code,
                *([row.line[:WIDEST]] if stream != "none" else []),
            ]
            for row in rows
        ],
    )


def _ran(row: wire.TableRow) -> str:
    if row.started is None:
        return ""
    return lasted((time.time() if row.ended is None else row.ended) - row.started)
