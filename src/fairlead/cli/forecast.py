"""`fairlead eta`, `promises`, `whatif`, `story`, `export-trace`: predict starts, tell what happened, record traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import completion
from fairlead.cli.history import Since
from fairlead.cli.input_files import document_of
from fairlead.cli.option_values import moment, pairs, seconds_of, wrong
from fairlead.cli.options import Common, JobName, LiveJobNames, Partition, open_client
from fairlead.cli.output import clock, fail, lasted, print_json, print_table, print_text
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.wire.api import Bill, PromisedStarts, WhatIf

POLICIES = ("fcfs", "easy", "shortest", "conservative", "learned")
UNKNOWN = "not known"
SHOWN = 20
"""Jobs that `whatif` lists; --json prints all."""


def eta(jobs: LiveJobNames, common: Common) -> None:
    """Predict when waiting jobs start.

    The answer for each job is a likely time, and a period in which it starts in 9 of 10 cases. To predict them, the
    server simulates the future of the cluster several times, with run times and new jobs as in the past.
    """
    with common.client() as client:
        etas = client.eta(*jobs)
    common.show(etas, (found.text for found in etas))


class PromisesOptions(Common):
    since: Since = ""


def promises(options: PromisesOptions) -> None:
    """Tell how many of the foretold starts came within their interval, in the last 7 days or since a time.

    For each job, the first start that was foretold counts. Jobs that were changed or ended before they started are
    counted apart. The next intervals are made wider or narrower, so that 9 of 10 starts come within them.
    """
    with options.client() as client:
        found = client.promised_starts(moment(options.since, "--since"))
    options.show(found, _promises(found))


def _promises(found: PromisedStarts) -> Iterator[str]:
    yield found.text
    if not found.scored:
        return
    yield f"{found.earlier} jobs started earlier than promised, {found.later} later"
    error = "" if found.last_median_error is None else f", median error {lasted(found.last_median_error)}"
    yield f"of the last promises before the start, {100 * found.last_kept / found.scored:.0f} % were kept{error}"
    yield f"not scored: {found.changed} jobs changed or held, {found.ended} ended before the start; {found.open} wait"
    if found.stretch != 1:
        yield f"intervals are now {found.stretch:.2f} times as wide as simulated"


class StoryOptions(Common):
    why_so_long: bool = option("Tell how long the job waited for what, instead of what happened.")


def story(job: JobName, options: StoryOptions) -> None:
    """Tell what happened to a job, when, and why; or, with --why-so-long, how long it waited for what.

    The times of --why-so-long add up to the wait. They come from the journal, as far as it reaches back.
    """
    from datetime import datetime

    with options.client() as client:
        if options.why_so_long:
            bill = client.bill(job)
            options.show(bill, _bill(bill))
            return
        told = client.story(job)
    options.show(told, (f"{datetime.fromtimestamp(line.at):%Y-%m-%d %H:%M:%S}  {line.text}" for line in told.lines))


def _bill(bill: Bill) -> Iterator[str]:
    yield f"job {bill.job} waited {lasted(bill.waited)}{':' if bill.causes else ''}"
    yield from (f"  {lasted(part.seconds)} {part.text}" for part in bill.causes)
    if bill.partly:
        yield "while some of its tasks ran, others waited:"
        yield from (f"  {lasted(part.seconds)} {part.text}" for part in bill.partly)
    if bill.since > bill.submitted:
        yield f"the journal begins at {clock(bill.since)}; waits before are left out"


def export_trace(
    file: Annotated[
        Path, typer.Argument(help="File to write. Its name must end in .yaml or .yml.", metavar="FILE.yaml")
    ],
    since: Since = "",
    partition: Partition = "",
) -> None:
    """Write recorded jobs to a file for `fairlead simulate`.

    The file has the jobs that ran and have ended, with their run times, and the present nodes. Only operators may use
    this command.
    """
    if file.suffix not in (".yaml", ".yml"):
        raise wrong("FILE.yaml", "the name of a trace must end in .yaml or .yml")
    if not file.parent.is_dir():
        fail(f"there is no folder {file.parent} to write {file.name} in; make it first")
    from fairlead.sim.text import plural

    with open_client(partition) as client:
        found = client.trace(moment(since, "--since"))
    # JSON is YAML. With one job a line, the file is easy to read and to cut.
    parts = []
    for key, entries in found.trace.items():
        rows = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        parts.append(f'"{key}": [\n  {rows}\n]' if entries else f'"{key}": []')
    file.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    reasons = ((found.not_ended, "had not ended"), (found.never_ran, "never ran"))
    left = ", ".join(f"{number} that {why}" for number, why in reasons if number)
    said = f"{file}: {plural(len(found.trace['jobs']), 'job')}, {plural(len(found.trace['nodes']), 'node')}"
    if left:
        said += f"; jobs left out: {left}"
    if found.after_left_out:
        said += (
            f"; {found.after_left_out} jobs no longer wait for a job in --after, because that job is not in the trace"
        )
    print_text(said)


class Changes(Common):
    add_nodes: list[str] | None = option(
        "Suppose N more nodes like those of a pool, or like an existing node; may be repeated.", metavar="POOL|NODE:N"
    )
    remove_node: list[str] | None = option(
        "Suppose that this node is gone; may be repeated.", metavar="NODE", autocompletion=completion.nodes
    )
    share: list[str] | None = option(
        "Suppose that this queue has share N; may be repeated for other queues.", metavar="QUEUE=N"
    )
    priority: list[str] | None = option(
        "Suppose that this job has priority N; may be repeated for other jobs.", metavar="JOB=N"
    )
    policy: list[str] | None = option(
        f"Suppose this policy: {', '.join(POLICIES)}, or a configuration file.", metavar="NAME|FILE"
    )
    without: list[str] | None = option(
        "Suppose that this user had submitted nothing, or that nothing had come to this queue, in the past; may be "
        "repeated. Only with --replay.",
        metavar="USER|QUEUE",
    )
    replay: list[str] | None = option(
        "Compare with the jobs of the past, such as the last 7d, instead of the jobs that wait now.", metavar="AGE"
    )


def whatif(options: Changes) -> None:
    """Predict which jobs would start earlier or later if nodes, shares, priorities or the policy changed.

    Nothing is changed. Only operators may use this command.
    """
    time = _once(options.replay, "--replay")
    if time is not None and not seconds_of(time):
        raise wrong("--replay", f"{time!r} is not a time; write one such as 7d or 12h")
    document: dict[str, Any] = {
        "add_nodes": _numbers(options.add_nodes, "--add-nodes", "NAME:N, such as n1:2", ":"),
        "remove_nodes": list(options.remove_node or ()),
        "shares": _numbers(options.share, "--share", "QUEUE=N, such as root.ml=40"),
        "priorities": _numbers(options.priority, "--priority", "JOB=N, such as 7=10"),
        "policy": _policy(_once(options.policy, "--policy")),
        "replay": time,
        "without": list(options.without or ()),
    }
    document = {key: value for key, value in document.items() if value}
    if not document.keys() - {"replay"}:
        raise typer.BadParameter("name a change: nodes, shares, priorities or a policy")
    with options.client() as client:
        found = client.what_if(**document)
    if options.as_json:
        print_json(found)
    else:
        _print_comparison(found, time is not None)


def _print_comparison(found: WhatIf, replayed: bool) -> None:
    print_text(_moves(found, replayed))
    never_before = found.never + sum(job.never_before for job in found.jobs) == found.compared
    never_after = found.never + found.no_longer == found.compared
    rows = [
        (
            "mean wait until the start",
            _wait(found.mean_wait_before, never_before),
            _wait(found.mean_wait_after, never_after),
        ),
        (
            "use of all GPUs (without GPUs, of all CPUs)",
            _percent(found.utilisation_before),
            _percent(found.utilisation_after),
        ),
    ]
    print_table(("", "NOW", "WITH CHANGE"), [row for row in rows if row[1:] != (UNKNOWN, UNKNOWN)])
    if found.jobs:
        moved = sorted(found.jobs, key=lambda job: -abs((job.wait_after or 0) - (job.wait_before or 0)))
        print_table(
            ("JOB", "NAME", "USER", "QUEUE", "WAITS", "WITH CHANGE"),
            [
                (
                    job.job,
                    job.name,
                    job.user,
                    job.queue,
                    _wait(job.wait_before, job.never_before),
                    _wait(job.wait_after, job.never_after),
                )
                for job in moved[:SHOWN]
            ],
        )
        if len(moved) > SHOWN:
            print_text(f"… and {len(moved) - SHOWN} more; --json prints all")
    if found.waits_before or found.waits_after:
        before, after = ({part.text: part.seconds for part in side} for side in (found.waits_before, found.waits_after))
        causes = sorted({**before, **after}, key=lambda text: -max(before.get(text, 0), after.get(text, 0)))
        print_table(
            ("JOBS WAITED", "NOW", "WITH CHANGE"),
            [(text, _wait(before.get(text, 0), False), _wait(after.get(text, 0), False)) for text in causes[:SHOWN]],
        )
    if found.note:
        print_text(found.note)


def _numbers(values: list[str] | None, option: str, form: str, separator: str = "=") -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name, number in pairs(values, option, form, separator).items():
        try:
            numbers[name] = int(number)
        except ValueError:
            raise wrong(option, f"{number!r} is not a whole number; write {form}") from None
    return numbers


def _once(values: list[str] | None, option: str) -> str | None:
    """Return the value of an option. Refuse the option if it is given more than once."""
    if values and len(values) > 1:
        raise wrong(option, f"given {len(values)} times; drop all but one")
    return values[0] if values else None


def _policy(policy: str | None) -> str | dict[str, Any] | None:
    if policy is None or policy in POLICIES:
        return policy
    if not policy or not Path(policy).exists():
        raise wrong(
            "--policy",
            f"there is no policy and no file {policy!r}; write one of {', '.join(POLICIES)}, or the path of a "
            "configuration file",
        )
    return document_of(Path(policy), "not a configuration; write key: value pairs", may_be_empty=False)


def _moves(found: WhatIf, replayed: bool) -> str:
    """Return a sentence that says how many jobs would start earlier, later or not at all."""
    if not found.compared:
        return "no job of that time has ended" if replayed else "no job waits, so no start would change"
    parts = [
        (found.earlier, "would start earlier"),
        (found.later, "would start later"),
        (found.same, "would start at the same time"),
        (found.no_longer, "would no longer start"),
        (found.never, "would start neither now nor with the change"),
        (found.unknown, "would start at a time that cannot be predicted"),
    ]
    jobs = ("1 job" if found.compared == 1 else f"{found.compared} jobs") + ("" if replayed else " waiting now")
    return f"of {jobs}: " + ", ".join(f"{number} {what}" for number, what in parts if number)


def _wait(seconds: float | None, never: bool) -> str:
    if seconds is None:
        return "no start" if never else UNKNOWN
    return "0s" if seconds < 1 else lasted(seconds)


def _percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{100 * part:.0f} %"
