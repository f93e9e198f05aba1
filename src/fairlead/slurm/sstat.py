"""`sstat`: the use of running steps, as far as it is known before their end."""

from __future__ import annotations

import re
import sys

from fairlead.slurm.listing import choose, help_lines, lines_of
from fairlead.slurm.options import error, fail, parse
from fairlead.slurm.rows import of_indices, parse_ids, rows_of
from fairlead.slurm.sacct import FIELDS, Entry, step_entries
from fairlead.slurm.server import connect
from fairlead.slurm.step_lines import steps_of
from fairlead.slurm.tables import SSTAT

NAME = "sstat"
USUAL = "JobID,MaxRSS,AveRSS,MinCPU,AveCPU,NTasks"


def main(words: list[str]) -> int:
    given, rest = parse(SSTAT, words)
    if "helpformat" in given:
        print("\n".join(help_lines(FIELDS)))
        return 0
    jobs = given.get("jobs", ",".join(rest))
    if not jobs:
        fail(NAME, "You must give me a jobid to query.")
    fields = choose(NAME, FIELDS, given.get("format", USUAL))
    wanted = dict(re.findall(r"([^,.]+)\.(\w+)", jobs))
    entries: list[Entry] = []
    with connect(NAME, given) as client:
        from fairlead.wire import operations as op

        for job, indices in parse_ids(jobs):
            view = client.send(op.Job(job=job, tasks=True))
            rows = [row for row in rows_of(view) if row.state == "RUNNING" and of_indices(row, indices)]
            found = [
                entry
                for row, steps in steps_of(client, rows)
                for entry in step_entries(row, steps)
                if entry.state == "RUNNING" and entry.step == wanted.get(row.id, entry.step)
            ]
            if not found:
                error(NAME, f"No steps running for job {job}")
            entries += found if "allsteps" in given or wanted else found[:1]
    for line in lines_of(fields, entries, given):
        sys.stdout.write(line + "\n")
    return 0
