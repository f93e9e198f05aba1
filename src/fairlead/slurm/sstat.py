"""`sstat`: the use of running steps, as far as it is known before their end."""

from __future__ import annotations

import sys

from fairlead.slurm.listing import choose, help_lines, lines_of
from fairlead.slurm.options import error, fail, parse
from fairlead.slurm.rows import parse_ids, rows_of
from fairlead.slurm.sacct import FIELDS, Entry
from fairlead.slurm.server import connect
from fairlead.slurm.tables import SSTAT

NAME = "sstat"
USUAL = "JobID,MaxRSS,AveRSS,MinCPU,AveCPU,NTasks"


def main(words: list[str]) -> int:
    from msgspec.structs import asdict

    given, rest = parse(SSTAT, words)
    if "helpformat" in given:
        print("\n".join(help_lines(FIELDS)))
        return 0
    jobs = given.get("jobs", ",".join(rest))
    if not jobs:
        fail(NAME, "You must give me a jobid to query.")
    fields = choose(NAME, FIELDS, given.get("format", USUAL))
    entries = []
    with connect(NAME, given) as client:
        from fairlead.wire import operations as op

        for job, _ in parse_ids(jobs):
            found = [
                Entry(**asdict(row), step="batch")
                for row in rows_of(client.send(op.Job(job=job, tasks=True)))
                if row.state == "RUNNING"
            ]
            if not found:
                error(NAME, f"No steps running for job {job}")
            entries += found
    for line in lines_of(fields, entries, given):
        sys.stdout.write(line + "\n")
    return 0
