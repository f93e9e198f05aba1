"""`sprio`: the priorities of waiting jobs."""

from __future__ import annotations

from fairlead.slurm.fields import Field, read_format
from fairlead.slurm.options import parse
from fairlead.slurm.rows import Row, rows_of
from fairlead.slurm.server import connect, pages_of
from fairlead.slurm.squeue import row_filter
from fairlead.slurm.tables import SPRIO
from fairlead.slurm.values import listed

NAME = "sprio"
USUAL = "%.15i %9r %.10Y %.10S %.10A"
LONG = "%.15i %9r %.8u %.10Y %.10S %.10A %.10N"
FIELDS: tuple[Field[Row], ...] = (
    Field("i", "jobid", "JOBID", lambda r: r.id.partition("_[")[0]),
    Field("r", "partition", "PARTITION", lambda r: r.partition_name),
    Field("u", "user", "USER", lambda r: r.user),
    Field("Y", "priority", "PRIORITY", lambda r: str(2**31 + r.priority)),
    Field("y", "norm", "PRIORITY", lambda r: f"{0.5 + r.priority / 2**32:.8f}"),
    Field("S", "site", "SITE", lambda r: "0"),
    Field("A", "age", "AGE", lambda r: "0"),
    Field("F", "fairshare", "FAIRSHARE", lambda r: "0"),
    Field("N", "nice", "NICE", lambda r: r.label("nice", "0")),
)


def main(words: list[str]) -> int:
    given, _ = parse(SPRIO, words)
    before, columns = read_format(given.get("format", LONG if "long" in given else USUAL), FIELDS)
    if "noheader" not in given:
        print(before + "".join([column.text(column.field.heading) for column in columns]))
    if "weights" in given:
        return 0
    ids = listed(given.get("jobs", ""))
    with connect(NAME, given) as client:
        accepts = row_filter(given, client, NAME)
        from fairlead.wire import operations as op

        for page in pages_of(client, op.Jobs(state=["pending"], tasks=True, limit=1000), ids):
            for row in (row for job in page.jobs for row in rows_of(job)):
                if accepts(row) and row.state == "PENDING":
                    print(before + "".join([column.text(column.field.value(row)) for column in columns]))
    return 0
