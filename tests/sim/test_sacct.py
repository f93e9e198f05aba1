"""The past of a Slurm cluster, as sacct and sinfo print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core.changes import NodeSpec
from fairlead.core.errors import Refused
from fairlead.sim.traces import Trace, parse_nodes, read_traces

HEAD = (
    "JobIDRaw|JobName|User|Account|Partition|Submit|Eligible|Start|End|State|Timelimit|NNodes|NCPUS|AllocTRES|NodeList"
)
LINES = """\
10|train|ann|phys.x|gpu|2026-10-01T08:00:00|2026-10-01T08:00:00|2026-10-01T08:10:00|2026-10-01T09:10:00|COMPLETED|\
02:00:00|2|16|billing=16,cpu=16,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=2|g[1-2]
10.batch||||||||2026-10-01T09:10:00|COMPLETED|||8||g1
11|prep|bob|chem|cpu|2026-10-01T08:05:00|2026-10-01T08:20:00|2026-10-01T08:20:30|2026-10-01T08:50:30|FAILED|\
1-00:00:00|1|4|cpu=4,mem=500M,node=1|c1
12|prep|bob|chem|cpu|2026-10-01T08:05:00|2026-10-01T08:05:00|2026-10-01T08:30:30|2026-10-01T08:40:30|COMPLETED|\
UNLIMITED|1|2|cpu=2,mem=500M,node=1|c1
13|late|bob|chem|cpu|2026-10-01T08:06:00|Unknown|Unknown|Unknown|PENDING|01:00:00|1|2||None assigned
14|gone|bob|chem|cpu|2026-10-01T08:07:00|2026-10-01T08:07:00|None|2026-10-01T08:09:00|CANCELLED by 1001|01:00:00|1|2||
15|now|bob|chem|cpu|2026-10-01T08:08:00|2026-10-01T08:08:00|2026-10-01T08:09:00|Unknown|RUNNING|01:00:00|1|2|cpu=2|c1
16|odd|bob|chem|cpu|yesterday|2026-10-01T08:08:00|2026-10-01T08:09:00|2026-10-01T08:10:00|COMPLETED|01:00:00|1|2|cpu=2|c1
12|again|bob|chem|cpu|2026-10-01T08:08:00|2026-10-01T08:08:00|2026-10-01T08:09:00|2026-10-01T08:10:00|COMPLETED|\
01:00:00|1|2|cpu=2|c1
"""


def read(folder: Path, text: str, nodes: list[tuple[str, NodeSpec]] | None = None) -> Trace:
    file = folder / "past.txt"
    file.write_text(text)
    return read_traces([file], lambda path: None, nodes=nodes)


def test_jobs_have_their_times_amounts_and_limits(tmp_path: Path) -> None:
    train, prep, second = read(tmp_path, f"{HEAD}\n{LINES}").arrivals
    minute = 60_000_000
    assert (train.id, train.at, train.started, train.durations) == ("10", 0, 10 * minute, (60 * minute,))
    stage = train.spec.stages[0]
    # Two nodes with 8 CPUs, 2 GPUs and 32 GiB of memory each; the kind of GPU is not counted twice.
    assert (stage.count, dict(stage.resources)) == (2, {"cpu": 8_000, "gpu": 2_000, "memory": 32 * 2**30})
    assert (stage.estimate, train.spec.user, train.spec.queue) == (120 * minute, "ann", "phys-x")
    # A job that waited for a time of its user's choice arrives when it became eligible.
    assert (prep.id, prep.at) == ("12", 5 * minute)
    assert (second.id, second.at, second.started) == ("11", 20 * minute, 20 * minute + 30_000_000)
    assert second.spec.stages[0].estimate == 24 * 60 * minute
    assert prep.spec.stages[0].estimate == prep.run, "without a limit, the run time is the estimate"


def test_lines_that_tell_no_whole_job_are_counted(tmp_path: Path) -> None:
    rows = {str(row["why"]): row["count"] for row in read(tmp_path, f"{HEAD}\n{LINES}").left_out.rows()}
    assert rows == {
        "never ran": 2,
        "had not ended": 1,
        "'yesterday' is not a time such as 2026-10-01T12:30:00": 1,
        "its job id is that of an earlier line": 1,
    }


def test_nodes_are_what_ran_on_them_at_the_same_time(tmp_path: Path) -> None:
    nodes = dict(read(tmp_path, f"{HEAD}\n{LINES}").nodes)
    assert sorted(nodes) == ["c1", "g1", "g2"]
    assert dict(nodes["c1"].capacity) == {"cpu": 6_000, "memory": 1_000 * 2**20}
    assert dict(nodes["g1"].capacity) == {"cpu": 8_000, "gpu": 2_000, "memory": 32 * 2**30}
    assert nodes["g1"].labels == (("partition/gpu", "yes"),)


def test_a_job_keeps_to_the_nodes_of_its_partition(tmp_path: Path) -> None:
    train, prep, _ = read(tmp_path, f"{HEAD}\n{LINES}").arrivals
    assert train.spec.stages[0].selectors == (("partition/gpu", ("yes",)),)
    assert prep.spec.stages[0].selectors == (("partition/cpu", ("yes",)),)
    only = "\n".join(line for line in LINES.splitlines() if "|cpu|" in line)
    first, _ = read(tmp_path, f"{HEAD}\n{only}\n").arrivals
    assert not first.spec.stages[0].selectors, "one partition needs no labels"


def test_without_lists_of_nodes_there_is_one_machine(tmp_path: Path) -> None:
    text = "JobID|Submit|Start|End|AllocCPUS\n" + "".join(
        f"{number}|2026-10-01T08:00:00|2026-10-01T08:0{number}:00|2026-10-01T08:0{number + 2}:00|3\n"
        for number in range(4)
    )
    trace = read(tmp_path, text)
    assert [(name, dict(spec.capacity)) for name, spec in trace.nodes] == [("cluster", {"cpu": 6_000})]
    assert {arrival.spec.user for arrival in trace.arrivals} == {"unknown"}


def test_nodes_are_read_from_sinfo(tmp_path: Path) -> None:
    file = tmp_path / "sinfo.txt"
    file.write_text(
        "NODELIST|CPUS|MEMORY|GRES|PARTITION\n"
        "c1|8|16000|(null)|cpu*\nc1|8|16000|(null)|all\n"
        "g[1-2]|32|256000|gpu:a100:4(S:0-1),gpu:2,mps:100|gpu\ng[1-2]|32|256000|gpu:a100:4|all\n"
    )
    nodes = dict(parse_nodes(str(file), lambda path: None))
    assert dict(nodes["c1"].capacity) == {"cpu": 8_000, "memory": 16_000 * 2**20}
    assert dict(nodes["g2"].capacity)["gpu"] == 4_000
    assert nodes["c1"].labels == (("partition/cpu", "yes"),)
    trace = read(tmp_path, f"{HEAD}\n{LINES}", list(nodes.items()))
    assert len(trace.nodes) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("JobID|Submit|Start\n1|a|b\n", "end, ncpus missing; run sacct --allusers"),
        ("JobID   Submit\n1   2026\n", "it should be the output of sacct --allusers"),
        (f"{HEAD}\n", "no job that can be simulated"),
        ("NODELIST|CPUS|MEMORY\nn1|many|5\n", "CPUS 'many' is not a whole number; run sinfo"),
    ],
)
def test_other_files_are_refused_with_the_command_to_run(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Refused, match=problem.replace("(", r"\(")):
        read(tmp_path, text)
