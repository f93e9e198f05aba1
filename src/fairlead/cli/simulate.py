"""`fairlead simulate`: run a trace under one or more policies, on a virtual clock."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import typer

from fairlead.cli.input_files import need_file
from fairlead.cli.output import fail
from fairlead.cli.progress import Bar
from fairlead.cli.typer_commands import Options, argument, option

Overrun = Literal["extend", "kill"]


class SimulationOptions(Options):
    traces: list[Path] = argument(
        "Files with recorded jobs: .swf, .csv (lists of the openb trace, or Fairlead's own format) or .yaml.",
        required=True,
        metavar="TRACE…",
    )
    policy: str = option(
        "Policy to try: fcfs, easy, shortest, conservative, learned, fair, or a configuration file such as "
        "fairlead.yaml. With --packing, a placement such as pack.",
        show_default="fcfs; with --packing, pack",
    )
    compare: str = option("Try several policies, separated by commas, and show them side by side.")
    nodes: str = option(
        "Nodes instead of those of the trace: 64 (nodes with one CPU), 8x16 (8 nodes with 16 CPUs), "
        "8xcpu=16,gpu=2, or a file."
    )
    jobs: int | None = option("Use only the first N jobs.", min=1, metavar="N")
    until: str = option("Stop at this simulated time, such as 30d.")
    overrun: Overrun = option(
        "What happens to a job that runs longer than its estimate: it continues (extend) or is ended (kill).",
        default="extend",
    )
    seed: int | None = option("Seed of the random numbers. Runs with the same seed give the same result.", min=0)
    faults: str = option("Let nodes fail and come back: light (rarely) or heavy (often).", metavar="PROFILE")
    packing: int | None = option(
        "Measure how well tasks are packed, without time: jobs arrive and never end, until they have asked "
        "for this percentage of all GPUs.",
        min=1,
        max=1000,
        metavar="PERCENT",
    )
    shuffles: int | None = option(
        "With --packing: repeat with N random orders of jobs, and show the mean.", min=1, show_default="10"
    )
    json_file: str = option("Write the result as JSON to this file; - for standard output.", "--json", metavar="FILE")
    starts: str = option("Write the start and end of each job to this file.", metavar="FILE.csv")
    report: str = option("Write a page with charts to this file.", metavar="FILE.html")

    @property
    def policies(self) -> list[str]:
        """The names of the policies or placements to try; empty for the default."""
        names = self.compare.split(",") if self.compare.strip(", ") else [self.policy]
        return [name.strip() for name in names if name.strip()]


def simulate(options: SimulationOptions) -> None:
    """Run recorded jobs through the scheduler on a virtual clock, and show how long they wait.

    Nothing is started on this machine. Ctrl-C stops the simulation and shows the figures so far. Exit code: 0 if the
    simulation finished, 1 if it failed, 2 if a file does not exist, 130 if interrupted.
    """
    _check(options)
    from fairlead.cli.input_files import Unreadable
    from fairlead.server.failure import Failed, load_policies, refusals_as_failed
    from fairlead.sim.fill import check_placement
    from fairlead.sim.traces import parse_nodes, read_traces

    run, check = (_simulate, _check_policy) if options.packing is None else (_pack, check_placement)
    try:
        load_policies()
        with refusals_as_failed(), interrupts() as interrupted:
            for name in options.policies:  # reading a trace may take a while, so wrong names are refused first
                check(name)
            fleet = parse_nodes(options.nodes, load_file) if options.nodes else None
            trace = read_traces(options.traces, load_file, options.overrun, fleet, options.jobs, options.seed)
            whole = run(trace, options, interrupted)
    except Failed as problem:
        fail(str(problem))
    except Unreadable as problem:
        fail(f"{problem.problem}{f' (line {problem.line})' if problem.line else ''}")
    if not whole:
        typer.echo("interrupted: these are the figures so far", err=True)
        raise typer.Exit(130)


def _check(options: SimulationOptions) -> None:
    """Refuse missing files, and options that exclude each other."""
    for path in options.traces:
        need_file(path)
    problem = "is only for --packing" if options.packing is None else "is not for --packing, which has no time"
    for name in ("shuffles",) if options.packing is None else ("report", "starts", "until", "faults"):
        if getattr(options, name):
            fail(f"--{name} {problem}; drop one of them", code=2)
    if options.policy and options.compare:
        fail("--compare names all policies, so --policy would be ignored; drop one of them", code=2)
    for file in filter(None, (options.json_file, options.starts, options.report)):
        if not Path(file).parent.is_dir():
            fail(f"there is no folder {Path(file).parent} to write {file} in; make it first")


def _simulate(trace: Any, options: SimulationOptions, interrupted: Callable[[], bool]) -> bool:
    """Run the trace under each policy and show the results. Return False if the run was interrupted."""
    from fairlead.sim.batch import Faults, run_policies
    from fairlead.sim.text import ROWS, parse_time, remarks, span, write_starts

    end = parse_time(options.until, "until") if options.until else None
    faults = Faults(options.faults, 1 if options.seed is None else options.seed) if options.faults else None
    policies = [_policy(name, trace) for name in options.policies or ["fcfs"]]
    total = len(trace.arrivals)
    with Bar() as bar:

        def watch(run: Any) -> bool:
            bar.show(run.policy.name, run.record.over, total, f"of {total} jobs, simulated {span(run.now / 1_000_000)}")
            return interrupted()

        runs = run_policies(trace, policies, end, watch, faults)
    results = [run.result for run in runs]
    _show(trace, results, ROWS, options.json_file)
    if options.json_file != "-":
        for result in results:
            for text in remarks(result):
                typer.echo(f"{result['policy']}: {text}")
    if options.starts:
        with Path(options.starts).open("w", encoding="utf-8", newline="") as file:
            write_starts(file, runs)
    if options.report:
        from fairlead.sim.report import page

        Path(options.report).write_text(page(runs), encoding="utf-8")
    return all(run.whole for run in runs)


def _pack(trace: Any, options: SimulationOptions, interrupted: Callable[[], bool]) -> bool:
    """Fill the nodes with each placement and show the results. Return False if the run was interrupted."""
    from fairlead.sim.batch import Packing, run_placements
    from fairlead.sim.text import PACKING_ROWS

    assert options.packing is not None
    packing = Packing(options.packing, options.shuffles or 10, 42 if options.seed is None else options.seed)
    with Bar() as bar:

        def watch(placement: str, done: int) -> bool:
            bar.show(placement, done, packing.shuffles, f"of {packing.shuffles} shuffles")
            return interrupted()

        results, whole = run_placements(trace, options.policies or ["pack"], packing, watch)
    if results:
        _show(trace, results, PACKING_ROWS, options.json_file)
    return whole


def load_file(path: Path) -> object:
    from fairlead.cli.input_files import read_document

    need_file(path)
    return read_document(path)


def _policy(name: str, trace: Any) -> Any:
    from fairlead.sim.policy_files import NAMED, policy_of

    return NAMED[name](trace) if name in NAMED else policy_of(name, load_file(Path(name)))


def _check_policy(name: str) -> None:
    """Refuse a name that is neither a policy nor a file."""
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
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C. A second Ctrl-C ends the program."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
