"""`fairlead shadow`: what Fairlead would have done with the jobs of another cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from fairlead.cli.input_files import document_of, need_file
from fairlead.cli.output import fail
from fairlead.cli.progress import Bar
from fairlead.cli.simulate import interrupts, load_file
from fairlead.cli.typer_commands import Options, argument, option


class ShadowOptions(Options):
    files: list[Path] | None = argument(
        "The past of the cluster: output of sacct, an SWF log, or another trace that tells when jobs started.",
        metavar="[FILE…]",
    )
    live: bool = option("Ask the Slurm of this machine, with sacct and sinfo, instead of reading files.")
    since: str = option("With --live: how far back, such as 30d.", show_default="30d")
    nodes: str = option(
        "The nodes: output of sinfo, 64 (nodes with one CPU), 8x16, or 8xcpu=16,gpu=2. Without it, nodes are inferred "
        "from what ran on them."
    )
    config: Path | None = option("Configuration to try, such as fairlead.yaml.", metavar="FILE.yaml")
    page: Path = option("The page to write.", default=Path("shadow.html"), metavar="FILE.html")
    json_file: str = option("Write the figures as JSON to this file; - for standard output.", "--json", metavar="FILE")
    predict: int = option(
        "Seconds to spend on predictions of starts; 0 for none.", default=60, min=0, metavar="SECONDS"
    )


def shadow(options: ShadowOptions) -> None:
    """Show what Fairlead would have done with the jobs of another cluster, on one page.

    On a Slurm cluster, as a user who may see all jobs: fairlead shadow --live. Elsewhere, take the file there with
    sacct --allusers --allocations --parsable2 --starttime now-30days --format JobIDRaw,JobName,User,Account,Partition,\
Submit,Eligible,Start,End,State,Timelimit,NNodes,NCPUS,AllocTRES,NodeList > sacct.txt and run fairlead shadow sacct.txt.

    Nothing is installed or started on the cluster. The page compares waits and slowdowns by user, queue and size with
    what really happened. Ctrl-C ends the simulation and shows the figures so far, with exit code 130.
    """
    _check(options)
    from fairlead.server.failure import Failed, load_policies, refusals_as_failed

    config = document_of(options.config) if options.config is not None else None
    try:
        load_policies()
        with refusals_as_failed(), tempfile.TemporaryDirectory() as folder:
            files, nodes = list(options.files or []), options.nodes
            if options.live:
                files, nodes = _ask_slurm(Path(folder), options.since or "30d", nodes)
            whole = _shadow(files, nodes, config, options)
    except Failed as problem:
        fail(str(problem))
    if not whole:
        typer.echo("interrupted: these are the figures so far", err=True)
        raise typer.Exit(130)


def _check(options: ShadowOptions) -> None:
    if options.live == bool(options.files):
        fail("name the files with the past of the cluster, or say --live on a Slurm cluster; not both", code=2)
    if options.since and not options.live:
        fail("--since is for --live: a file has the time that it has", code=2)
    for path in options.files or ():
        need_file(path)
    for file in (options.page, *([Path(options.json_file)] if options.json_file not in ("", "-") else [])):
        if not file.parent.is_dir():
            fail(f"there is no folder {file.parent} to write {file.name} in; make it first")


def _shadow(files: list[Path], nodes: str, config: dict[str, Any] | None, options: ShadowOptions) -> bool:
    """Run the past, write the page, and return False if the run was interrupted."""
    from fairlead.shadow.shadow_page import shadow_page
    from fairlead.shadow.shadow_run import shadow as run_shadow
    from fairlead.sim.text import ROWS, span, table
    from fairlead.sim.traces import parse_nodes, read_traces

    fleet = parse_nodes(nodes, load_file) if nodes else None
    trace = read_traces(files, load_file, nodes=fleet)
    total = len(trace.arrivals)
    with interrupts() as interrupted, Bar() as bar:

        def watch(run: Any) -> bool:
            bar.show(run.policy.name, run.record.over, total, f"of {total} jobs, simulated {span(run.now / 1_000_000)}")
            return interrupted()

        found = run_shadow(trace, config, watch, options.predict)
    options.page.write_text(shadow_page(found), encoding="utf-8")
    text = json.dumps(found.document(), ensure_ascii=False, indent=1)
    if options.json_file == "-":
        typer.echo(text)
        return found.whole
    if options.json_file:
        Path(options.json_file).write_text(text + "\n", encoding="utf-8")
    for line in trace.left_out.texts():
        typer.echo(f"  {line}")
    for line in table([run.result for run in found.runs], ROWS[:7]):
        typer.echo(line)
    typer.echo(found.predictions.text)
    typer.echo(f"{options.page} has it by user, queue and size")
    return found.whole


def _ask_slurm(folder: Path, since: str, nodes: str) -> tuple[list[Path], str]:
    """Return files with what sacct and sinfo say."""
    from fairlead.sim.text import parse_time
    from fairlead.sim.traces.sacct import FORMAT, NODES_FORMAT

    back = parse_time(since, "since") // 1_000_000
    jobs = folder / "sacct"
    _run(
        jobs,
        "sacct",
        "--allusers",
        "--allocations",
        "--parsable2",
        f"--starttime=now-{back}seconds",
        f"--format={FORMAT}",
    )
    if not nodes:
        found = folder / "sinfo"
        _run(found, "sinfo", "--Node", f"--format={NODES_FORMAT}")
        nodes = str(found)
    return [jobs], nodes


def _run(file: Path, *command: str) -> None:
    try:
        with file.open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    except FileNotFoundError:
        fail(f"there is no {command[0]} on this machine; run it on the cluster and name the file instead of --live")
    if done.returncode:
        sys.stderr.write(done.stderr.decode(errors="replace"))
        fail(f"{command[0]} ended with exit code {done.returncode}")
