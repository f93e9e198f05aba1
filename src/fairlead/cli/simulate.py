"""`fairlead simulate`: run a trace under one or more policies, on a virtual clock."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli.input_files import need_file
from fairlead.cli.output import fail

if TYPE_CHECKING:
    from rich.progress import Progress

BAR_EVERY = 200
"""Cycles between two updates of the bar."""

Overrun = Literal["extend", "kill"]


def simulate(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE…",
            help="Files with recorded jobs: .swf, .csv (openb lists, or Fairlead's own format) or .yaml.",
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="Policy to try: fcfs, easy, shortest, conservative, learned, fair, or a configuration file such as "
            "fairlead.yaml. With --packing, a placement such as pack.",
            show_default="fcfs; with --packing, pack",
        ),
    ] = "",
    compare: Annotated[
        str, typer.Option(help="Try several policies, separated by commas, and show them side by side.")
    ] = "",
    nodes: Annotated[
        str,
        typer.Option(
            help="Nodes instead of those of the trace: 64 (nodes with one CPU), 8x16 (8 nodes with 16 CPUs), "
            "8xcpu=16,gpu=2, or a file."
        ),
    ] = "",
    jobs: Annotated[int | None, typer.Option(min=1, help="Use only the first N jobs.", metavar="N")] = None,
    until: Annotated[str, typer.Option(help="Stop at this simulated time, such as 30d.")] = "",
    overrun: Annotated[
        Overrun,
        typer.Option(help="What happens to a job that runs longer than its estimate: go on (extend), or end (kill)."),
    ] = "extend",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed for everything random, so that a run can be repeated.")
    ] = None,
    faults: Annotated[
        str, typer.Option(metavar="PROFILE", help="Let nodes fail and come back: light (rarely) or heavy (often).")
    ] = "",
    packing: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="PERCENT",
            help="Measure how well tasks are packed, without time: jobs arrive and never end, until they have asked "
            "for this percentage of all GPUs.",
        ),
    ] = None,
    shuffles: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --packing: repeat with N random orders of jobs, and show the mean.", show_default="10"
        ),
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")
    ] = "",
    starts: Annotated[
        str, typer.Option(metavar="FILE.csv", help="Write the start and end of each job to a file.")
    ] = "",
    report: Annotated[str, typer.Option(metavar="FILE.html", help="Write a page with charts.")] = "",
) -> None:
    """Run recorded jobs through the scheduler on a virtual clock, and show how long they wait.

    Nothing is started on this machine. Ctrl-C stops the simulation and shows the figures so far. Exit code: 0 if the
    simulation finished, 1 if it failed, 2 if a file does not exist, 130 if interrupted.
    """
    for path in traces:
        need_file(path)
    if packing is None:
        _refuse({"--shuffles": shuffles}, "is only for --packing")
    else:
        timed = {"--report": report, "--starts": starts, "--until": until, "--faults": faults}
        _refuse(timed, "is not for --packing, which has no time")
    if policy and compare:
        fail("--compare names all policies, so --policy would be ignored; drop one of them", code=2)
    for name in filter(None, (json_file, starts, report)):
        if not Path(name).parent.is_dir():
            fail(f"there is no folder {Path(name).parent} to write {name} in; make it first")
    from fairlead.cli.yaml_files import Unreadable
    from fairlead.server.failure import Failed, refusals_as_failed
    from fairlead.server.input_checks import load_policies
    from fairlead.sim.fill import check_placement
    from fairlead.sim.traces import parse_nodes, read_traces

    try:
        load_policies()
        with refusals_as_failed(), _interrupts() as interrupted:
            names = [name.strip() for name in compare.split(",") if name.strip()] or [policy] * bool(policy)
            # Refuse wrong names first, because reading a trace may take a while.
            for name in names:
                check_placement(name) if packing is not None else _check_policy(name)
            fleet = parse_nodes(nodes, _load) if nodes else None
            trace = read_traces(traces, _load, overrun, fleet, jobs, seed)
            if packing is not None:
                whole = _pack(trace, names, packing, shuffles or 10, seed, json_file, interrupted)
            else:
                trouble = (faults, 1 if seed is None else seed) if faults else None
                whole = _simulate(trace, names, until, trouble, json_file, starts, report, interrupted)
    except Failed as problem:
        fail(str(problem))
    except Unreadable as problem:
        fail(f"{problem.problem}{f' (line {problem.line})' if problem.line else ''}")
    if not whole:
        typer.echo("interrupted: these are the figures so far", err=True)
        raise typer.Exit(130)


def _refuse(options: Mapping[str, object], problem: str) -> None:
    """Exit if one of the options is given."""
    for option, value in options.items():
        if value:
            fail(f"{option} {problem}; drop one of them", code=2)


def _simulate(
    trace: Any,
    names: list[str],
    until: str,
    trouble: tuple[str, int] | None,
    json_file: str,
    starts: str,
    report: str,
    interrupted: Callable[[], bool],
) -> bool:
    """Run the trace and show the results. Return False if it was interrupted."""
    from fairlead.sim.batch import Faults, run_policies
    from fairlead.sim.text import ROWS, parse_time, remarks, write_starts

    end = parse_time(until, "until") if until else None
    chosen = [_policy(name, trace) for name in names or ["fcfs"]]
    with _Bar("jobs", len(trace.arrivals)) as bar:

        def watch(run: Any) -> bool:
            bar.show(run.policy.name, run.record.over, run.now)
            return interrupted()

        runs = run_policies(trace, chosen, end, watch, Faults(*trouble) if trouble else None)
    results = [run.result for run in runs]
    _show(trace, results, ROWS, json_file)
    if json_file != "-":
        for result in results:
            for text in remarks(result):
                typer.echo(f"{result['policy']}: {text}")
    if starts:
        with Path(starts).open("w", encoding="utf-8", newline="") as file:
            write_starts(file, runs)
    if report:
        from fairlead.sim.report import page

        Path(report).write_text(page(runs), encoding="utf-8")
    return all(run.whole for run in runs)


def _pack(
    trace: Any,
    names: list[str],
    percent: int,
    shuffles: int,
    seed: int | None,
    json_file: str,
    interrupted: Callable[[], bool],
) -> bool:
    """Run the trace and show the results. Return False if it was interrupted."""
    from fairlead.sim.batch import Packing, run_placements
    from fairlead.sim.text import PACKING_ROWS

    with _Bar("shuffles", shuffles) as bar:

        def watch(place: str, done: int) -> bool:
            bar.show(place, done, None)
            return interrupted()

        packing = Packing(percent, shuffles, 1 if seed is None else seed)
        results, whole = run_placements(trace, names or ["pack"], packing, watch)
    if results:
        _show(trace, results, PACKING_ROWS, json_file)
    return whole


def _load(path: Path) -> object:
    from fairlead.cli.yaml_files import read_document

    need_file(path)
    return read_document(path)


def _policy(name: str, trace: Any) -> Any:
    from fairlead.sim.policy_files import NAMED, policy_of

    return NAMED[name](trace) if name in NAMED else policy_of(name, _load(Path(name)))


def _check_policy(name: str) -> None:
    """Refuse a text that names neither a policy nor a file."""
    from fairlead.sim.policy_files import check_name

    if "." in name:
        need_file(Path(name))
    elif not Path(name).exists():
        check_name(name)


def _show(trace: Any, results: list[dict[str, Any]], rows: Any, json_file: str) -> None:
    from fairlead.sim.text import plural, table

    document = results[0] if len(results) == 1 else {"trace": trace.name, "runs": results}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    if json_file == "-":
        typer.echo(text)
        return
    if json_file:
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    typer.echo(f"{trace.name}: {plural(len(trace.arrivals), 'job')}, {plural(len(trace.nodes), 'node')}")
    for text in trace.left_out.texts():
        typer.echo(f"  {text}")
    for text in table(results, rows):
        typer.echo(text)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that is True after Ctrl-C. A second Ctrl-C ends the program."""
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
    """A progress bar with the simulated time, shown only if stderr is a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._bar: Progress | None = None
        self._calls = 0

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self._what + "{task.fields[time]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
        return self

    def show(self, name: str, done: int, now: int | None) -> None:
        self._calls += 1
        if self._bar is None or self._calls % BAR_EVERY != 1:
            return
        from fairlead.sim.text import span

        if not self._bar.tasks or self._bar.tasks[-1].description != name:
            for task in self._bar.tasks:
                self._bar.update(task.id, visible=False)
            self._bar.add_task(name, total=self._total, time="")
        time = "" if now is None else f", simulated {span(now / 1_000_000)}"
        self._bar.update(self._bar.tasks[-1].id, completed=done, time=time)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
