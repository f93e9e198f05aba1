"""`fairlead simulate`: what policies make of a trace, on a virtual clock."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli.output import fail, need_file

if TYPE_CHECKING:
    from rich.progress import Progress

OFTEN = 200
"""Every so many cycles the bar moves."""

Overrun = Literal["extend", "kill"]


def simulate(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE…", help="Files: .swf, .csv (openb lists, or our own) or .yaml.")
    ],
    policy: Annotated[str, typer.Option(help="fcfs, easy, fair, or a configuration such as fairlead.yaml.")] = "fcfs",
    compare: Annotated[str, typer.Option(help="Several policies, divided by commas, side by side.")] = "",
    nodes: Annotated[
        str, typer.Option(help="Other nodes than the trace's: 64, 8x16 (CPUs), 8xcpu=16,gpu=2, or a file.")
    ] = "",
    jobs: Annotated[int | None, typer.Option(min=1, help="Only the first so many jobs.")] = None,
    until: Annotated[str, typer.Option(help="Stop at this simulated time, such as 30d.")] = "",
    overrun: Annotated[
        Overrun, typer.Option(help="Jobs that outlast their estimate: raise the estimate, or cut the run.")
    ] = "extend",
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed for what is made up.")] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")
    ] = "",
    starts: Annotated[str, typer.Option(metavar="FILE.csv", help="Write when each job started and ended.")] = "",
) -> None:
    """Run a trace through the real scheduler on a virtual clock, and see how long jobs would have waited.

    Nothing is started on this machine. Ctrl-C stops, and shows what there is.
    Exit code: 0 if it came to its end, 1 if it cannot be done, 2 if a file does not exist, 130 if interrupted.
    """
    for path in traces:
        need_file(path)
    from fairlead.app import Failed, told
    from fairlead.cli.documents import Unreadable
    from fairlead.sim.runs import run_policies
    from fairlead.sim.text import parse_time
    from fairlead.sim.traces import parse_nodes, read_traces

    try:
        with told():
            given = parse_nodes(nodes, _load) if nodes else None
            trace = read_traces(traces, _load, overrun, given, jobs, seed)
            chosen = [_policy(name, trace) for name in (compare.split(",") if compare else [policy])]
            end = parse_time(until, "until") if until else None
            with _interrupts() as interrupted, _Bar(len(trace.arrivals)) as bar:
                runs = run_policies(trace, chosen, end, lambda run: bar.show(run) or interrupted())
    except Failed as problem:
        fail(str(problem))
    except Unreadable as problem:
        fail(f"{problem.problem}{f' (line {problem.line})' if problem.line else ''}")
    _show(trace, [run.result for run in runs], json_file)
    _write(runs, starts)
    if not runs[-1].whole:
        typer.echo("interrupted: these are the figures so far", err=True)
        raise typer.Exit(130)


def _load(path: Path) -> object:
    from fairlead.cli.documents import read_document

    need_file(path)
    return read_document(path)


def _policy(name: str, trace: Any) -> Any:
    from fairlead.sim.policies import NAMED, policy_of

    name = name.strip()
    if name in NAMED:
        return NAMED[name](trace)
    if not Path(name).exists() and "." not in name:
        fail(f"there is no policy {name}; write {', '.join(NAMED)} or name a file such as fairlead.yaml")
    return policy_of(name, _load(Path(name)))


def _show(trace: Any, results: list[dict[str, Any]], json_file: str) -> None:
    from fairlead.sim.text import remarks, table

    document = results[0] if len(results) == 1 else {"trace": trace.name, "runs": results}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    if json_file == "-":
        typer.echo(text)
        return
    if json_file:
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    typer.echo(f"{trace.name}: {len(trace.arrivals):,} jobs, {len(trace.nodes):,} nodes")
    for text in trace.left_out.texts():
        typer.echo(f"  {text}")
    for text in table(results):
        typer.echo(text)
    for each in results:
        for text in remarks(each):
            typer.echo(f"{each['policy']}: {text}")


def _write(runs: list[Any], starts: str) -> None:
    from fairlead.sim.text import write_starts

    if starts:
        with Path(starts).open("w", encoding="utf-8", newline="") as file:
            write_starts(file, runs)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is asked about between cycles; a second one ends the program as ever."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


class _Bar:
    """On a terminal's stderr: how many jobs have ended, and which simulated time it is."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._bar: Progress | None = None
        self._cycles = 0

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("jobs, simulated {task.fields[time]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
        return self

    def show(self, simulation: Any) -> bool:
        """Called before each cycle. It never wants to stop."""
        self._cycles += 1
        if self._bar is not None and self._cycles % OFTEN == 1:
            from fairlead.sim.text import span

            name = simulation.policy.name
            if not self._bar.tasks or self._bar.tasks[-1].description != name:
                for task in self._bar.tasks:
                    self._bar.update(task.id, visible=False)
                self._bar.add_task(name, total=self._jobs, time="")
            time = span(simulation.now / 1_000_000)
            self._bar.update(self._bar.tasks[-1].id, completed=simulation.record.over, time=time)
        return False

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
