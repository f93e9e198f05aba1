"""Traces: what is read of files of each kind, and what is left out and why."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, StageSpec
from fairlead.core.resources import HOUR, MINUTE, SECOND
from fairlead.sim.traces import Trace, parse_nodes, read_traces
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.own import parse_nodes as nodes_of

SWF = """\
; Version: 2.2
; MaxNodes: 4
; MaxProcs: 8
  7  100  5  60  4 -1 -1  2  90 -1 1 3 4 -1 2 -1 -1 -1
  1   50 -1  10  8 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1
  2   50 -1   0  1 -1 -1 -1  5 -1 0  3  4 -1 -1 -1 -1 -1
"""


def load(path: Path) -> object:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read(folder: Path, name: str, text: str, **rest: Any) -> Trace:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return read_traces([path], load, **rest)


def swf(*fields: int | str) -> str:
    """A line from its first nine columns."""
    return " ".join(map(str, [*fields, *[-1] * (18 - len(fields))])) + "\n"


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz"])
def test_swf(tmp_path: Path, name: str) -> None:
    trace = read(tmp_path, name, SWF)
    assert [(arrival.id, arrival.at // SECOND, arrival.run // SECOND) for arrival in trace.arrivals] == [
        ("1", 50, 10),
        ("2", 50, 0),
        ("7", 100, 60),
    ]
    assert [(node, spec.capacity) for node, spec in trace.nodes] == [("machine", (("cpu", 8000),))]
    assert trace.arrivals[2].spec == JobSpec(
        "j7",
        "u3",
        "q2",
        (StageSpec("main", 2, 0, (("cpu", 1000),), estimate=90 * SECOND),),
        groups=("g4",),
    )
    # Without a request it is what was allocated, without an estimate the run time; the user is unknown.
    assert trace.arrivals[0].spec == JobSpec(
        "j1", "unknown", "", (StageSpec("main", 8, 0, (("cpu", 1000),), estimate=10 * SECOND),)
    )


def test_first_jobs_are_the_first_in_the_queue(tmp_path: Path) -> None:
    assert [arrival.id for arrival in read(tmp_path, "log.swf", SWF, jobs=2).arrivals] == ["1", "2"]


@pytest.mark.parametrize(
    ("overrun", "run", "estimate"),
    [("extend", (100, 20, 7), (100, 30, 7)), ("kill", (60, 20, 7), (60, 30, 7))],
)
def test_overrun(tmp_path: Path, overrun: Any, run: tuple[int, ...], estimate: tuple[int, ...]) -> None:
    lines = [swf(1, 0, -1, 100, 1, -1, -1, 1, 60), swf(2, 0, -1, 20, 1, -1, -1, 1, 30), swf(3, 0, -1, 7, 1)]
    trace = read(tmp_path, "log.swf", "; MaxProcs: 4\n" + "".join(lines), overrun=overrun)
    assert tuple(arrival.run // SECOND for arrival in trace.arrivals) == run
    assert tuple((arrival.spec.stages[0].estimate or 0) // SECOND for arrival in trace.arrivals) == estimate


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (swf(9, 0, -1, 5, 0), "no processors"),
        (swf(9, 0, -1, 5, -1, -1, -1, -1), "no processors"),
        (swf(9, 0, -1, -1, 4), "no run time"),
        (swf(9, -1, -1, 5, 4), "no submit time"),
        (swf(9, 0, -1, 5, 5), "more processors than the machine's 4"),
        (swf(9, "noon", -1, 5, 4), "'noon' is not a number"),
        (swf(9, 0, -1, 5, "four"), "'four' is not a whole number"),
        (swf(9, 0, -1, 10**11, 4), "a time of more than a hundred years"),
        (swf(9, 0, -1, "inf", 4), "'inf' is not a number of seconds"),
        (swf(9, 0, -1, 5, 10**8), "more than 10000000 processors"),
        ("9 0 -1 5 4\n", "fewer than 18 columns"),
        (swf(1, 0, -1, 5, 4), "its job number is that of an earlier line"),
    ],
)
def test_bad_lines_are_counted_and_named(tmp_path: Path, line: str, why: str) -> None:
    trace = read(tmp_path, "log.swf", "; MaxProcs: 4\n" + swf(1, 0, -1, 5, 4) + line)
    assert len(trace.arrivals) == 1
    assert trace.left_out.rows() == [{"why": why, "count": 1, "lines": [3]}]


def test_ten_lines_of_a_kind_are_named(tmp_path: Path) -> None:
    trace = read(tmp_path, "log.swf", "; MaxProcs: 4\n" + swf(1, 0, -1, 5, 4) + swf(2, 0, -1, 5, 0) * 12)
    assert trace.left_out.texts() == ["12 left out, no processors: lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …"]
    assert len(trace.left_out) == 12


def test_fractions_of_a_second_are_kept(tmp_path: Path) -> None:
    (job,) = read(tmp_path, "log.swf", "; MaxProcs: 4\n" + swf(1, "0.5", -1, "2.25", 4)).arrivals
    assert (job.at, job.run) == (SECOND // 2, 9 * SECOND // 4)


OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,1024,2,P100\nnode-1,32000,2048,0,\nnode-2,x,1,0,\n"
OPENB_PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,6000,512,1,460,,LS,Running,10,100,20
p1,4000,0,2,1000,V100|P100,BE,Running,5,50,
p2,1000,1,0,0,,LS,Pending,30,,
p3,1000,1,2,500,,LS,Pending,30,,
p4,1000,1,0,0,,LS,Running,30,20,
"""


def test_openb(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv.gz"
    nodes.write_text(OPENB_NODES)
    pods.write_bytes(gzip.compress(OPENB_PODS.encode()))
    trace = read_traces([nodes, pods], load)
    assert [(name, spec.capacity, spec.labels) for name, spec in trace.nodes] == [
        ("node-0", (("cpu", 64000), ("gpu", 2000), ("memory", 2**30)), (("model", "P100"),)),
        ("node-1", (("cpu", 32000), ("memory", 2**31)), ()),
    ]
    assert [(arrival.id, arrival.at // SECOND, arrival.run // SECOND) for arrival in trace.arrivals] == [
        ("p1", 5, 45),
        ("p0", 10, 80),
        ("p2", 30, 0),
    ]
    first = trace.arrivals[0].spec.stages[0]
    assert first.resources == (("cpu", 4000), ("gpu", 2000)) and first.selectors == (("model", ("P100", "V100")),)
    assert dict(trace.arrivals[1].spec.stages[0].resources)["gpu"] == 460
    assert trace.resource == "gpu"
    assert trace.left_out.rows() == [
        {"why": "nodes.csv: node: cpu_milli 'x' is not a number", "count": 1, "lines": [4]},
        {"why": "pods.csv.gz: pod: parts of several GPUs", "count": 1, "lines": [5]},
        {"why": "pods.csv.gz: pod: its times are out of order", "count": 1, "lines": [6]},
    ]


def test_lists_of_openb_as_other_programs_write_them(tmp_path: Path) -> None:
    """Columns in another order, further and missing ones, spaces, and amounts with a decimal point."""
    nodes, pods = tmp_path / "nodes.csv.gz", tmp_path / "pods.csv"
    nodes.write_bytes(gzip.compress(b"gpu,index,sn,cpu_milli\r\n2.0,0,node-0,64000.0\r\n"))
    pods.write_text(
        "\ufeffnum_gpu, gpu_spec ,name,cpu_milli,gpu_milli\n"
        "1,A10 | T4|,p0,1000.0,250.0\n0,,p1,2000,\n2,T4|T4,p2,3000,1000\n1.0,,p3,4000,\n1,,p4,,500\n1.5,,p5,1,1000\n"
    )
    trace = read_traces([nodes, pods], load)
    assert [(name, spec.capacity, spec.labels) for name, spec in trace.nodes] == [
        ("node-0", (("cpu", 64000), ("gpu", 2000)), ())
    ]
    stages = {arrival.id: arrival.spec.stages[0] for arrival in trace.arrivals}
    assert {name: (stage.resources, stage.selectors) for name, stage in stages.items()} == {
        "p0": ((("cpu", 1000), ("gpu", 250)), (("model", ("A10", "T4")),)),
        "p1": ((("cpu", 2000),), ()),
        "p2": ((("cpu", 3000), ("gpu", 2000)), (("model", ("T4", "T4")),)),
        "p3": ((("cpu", 4000), ("gpu", 1000)), ()),
    }
    assert trace.left_out.rows() == [
        {"why": "pods.csv: pod: cpu_milli '' is not a number", "count": 1, "lines": [6]},
        {"why": "pods.csv: pod: num_gpu '1.5' is not a number", "count": 1, "lines": [7]},
    ]


YAML = """
nodes:
  - {name: big, resources: {cpu: 16, gpu: 2}}
  - {name: n, count: 2, resources: {cpu: 4}}
jobs:
  - {id: prepare, submit: 1min, user: ann, stages: [{resources: {cpu: 1}, duration: 5min}]}
  - id: train
    queue: root.ml
    after: [prepare]
    submit: 1min
    stages: [{name: ps, resources: {cpu: 2}, duration: 1h, estimate: 2h}, {name: w, count: 4, min: 2, duration: 30min}]
  - {stages: [{resources: {cpu: 1}}]}
  - {id: train, stages: [{duration: 1s}]}
  - {submit: 0s, stages: [{duration: 1s}], colour: red}
"""


def test_yaml(tmp_path: Path) -> None:
    trace = read(tmp_path, "week.yaml", YAML)
    assert [name for name, _ in trace.nodes] == ["big", "n0", "n1"]
    prepare, train = trace.arrivals
    assert (prepare.id, prepare.at, prepare.durations, prepare.spec.user) == ("prepare", MINUTE, (5 * MINUTE,), "ann")
    assert train.durations == (HOUR, HOUR // 2) and train.spec.after == ("jprepare",) and train.spec.queue == "root.ml"
    assert [(stage.name, stage.count, stage.min, stage.estimate) for stage in train.spec.stages] == [
        ("ps", 1, 0, 2 * HOUR),
        ("w", 4, 2, HOUR // 2),
    ]
    assert [(row["lines"], str(row["why"]).partition(";")[0]) for row in trace.left_out.rows()] == [
        ([3], "stages[0].duration: missing"),
        ([4], "id: there is already a job train"),
        ([5], "colour: a job has no such key"),
    ]


CSV = """\
id,submit,duration,count,min,cpu,memory,gpu,estimate,user,queue,priority,after
a,0,90,8,,1,1Gi,,2min,ann,,5,
b,1min,1.5,,,0.5,,1,,bob,root.b,,a
c,soon,1,,,,,,,,,,
d,0,1,,,,,,,,,,,,
"""


def test_csv(tmp_path: Path) -> None:
    trace = read(tmp_path, "jobs.csv", CSV, nodes=parse_nodes("2xcpu=8,gpu=1", load))
    a, b = trace.arrivals
    assert (a.spec.user, a.spec.priority, a.durations, a.spec.stages[0].count) == ("ann", 5, (90 * SECOND,), 8)
    assert a.spec.stages[0].resources == (("cpu", 1000), ("memory", 2**30))
    assert a.spec.stages[0].estimate == 2 * MINUTE
    assert (b.at, b.durations, b.spec.after, b.spec.queue) == (MINUTE, (3 * SECOND // 2,), ("ja",), "root.b")
    assert b.spec.stages[0].resources == (("cpu", 500), ("gpu", 1000))
    assert [(row["lines"], str(row["why"]).partition(":")[0]) for row in trace.left_out.rows()] == [
        ([4], "submit"),
        ([5], "more values than columns"),
    ]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("3", [("n0", 1000), ("n1", 1000), ("n2", 1000)]),
        ("2x16", [("n0", 16000), ("n1", 16000)]),
        ("1xcpu=2.5,memory=1Gi", [("n0", 2500)]),
    ],
)
def test_nodes_by_number(text: str, nodes: list[tuple[str, int]]) -> None:
    assert [(name, dict(spec.capacity)["cpu"]) for name, spec in parse_nodes(text, load)] == nodes


def test_other_nodes_than_the_trace_has(tmp_path: Path) -> None:
    trace = read(tmp_path, "log.swf", SWF, nodes=parse_nodes("2x2", load))
    assert [arrival.id for arrival in trace.arrivals] == ["2", "7"]  # 8 processors are more than 4
    assert [name for name, _ in trace.nodes] == ["n0", "n1"]


@pytest.mark.parametrize(
    ("name", "text", "field", "problem"),
    [
        ("log.swf", swf(1, 0, -1, 5, 4), "nodes", "the header has neither MaxProcs nor MaxNodes"),
        ("log.swf", "; MaxProcs: 4\n", "jobs", "log.swf has no job that can be simulated"),
        ("jobs.csv", CSV, "nodes", "jobs.csv has no nodes"),
        ("jobs.csv", "a,b\n1,2\n", "jobs.csv: columns", "not those of a trace"),
        ("jobs.csv", "submit,duration,color\n1,2,3\n", "columns", "color not known"),
        ("jobs.csv", "", "jobs.csv: columns", "not those of a trace"),
        ("jobs.txt", "", "jobs.txt", "not a known kind of trace"),
        ("t.yaml", "jobs: 3", "jobs", "3 is not a list"),
        (
            "t.yaml",
            "nodes: [{name: n, count: 2, resources: {cpu: 1}}, {name: n1}]",
            "nodes[1].name",
            "already a node n1",
        ),
        ("t.yaml", "generate: {jobs: 5}", "nodes", "none could run a generated task"),
        ("t.yaml", "generate: {job: 5}", "generate.job", "a workload has no such key"),
        ("t.yaml", "generate: {shortest: 2h, longest: 1h}", "generate.shortest", "it is 0 or above longest"),
    ],
)
def test_refused(tmp_path: Path, name: str, text: str, field: str, problem: str) -> None:
    with pytest.raises(Refused) as refusal:
        read(tmp_path, name, text)
    assert refusal.value.field == field and problem in refusal.value.problem


def test_two_logs_with_the_same_jobs(tmp_path: Path) -> None:
    for name in ("a.swf", "b.swf"):
        (tmp_path / name).write_text(SWF)
    with pytest.raises(Refused, match="simulate them separately"):
        read_traces([tmp_path / "a.swf", tmp_path / "b.swf"], load)


# -- made-up work ------------------------------------------------------------------------------------------------

NODES = nodes_of([{"name": "n", "count": 16, "resources": {"cpu": 16}}], "nodes")


def test_generated_work_is_the_same_again() -> None:
    assert generate(Workload(jobs=50), NODES, "extend") == generate(Workload(jobs=50), NODES, "extend")
    assert generate(Workload(jobs=50), NODES, "extend") != generate(Workload(jobs=50, seed=2), NODES, "extend")


def test_generated_work_has_the_load_that_was_asked_for() -> None:
    jobs = generate(Workload(jobs=3000, load=50), NODES, "extend")
    span = jobs[-1].at - jobs[0].at
    assert 0.45 < sum(job.work("cpu") for job in jobs) / (span * 256_000) < 0.55
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    sizes = [job.spec.stages[0].count for job in jobs]
    assert max(sizes) <= 128 and 0.2 < sizes.count(1) / 3000 < 0.5
    assert all(10 * SECOND <= job.run <= 18 * HOUR for job in jobs)
    assert all((job.spec.stages[0].estimate or 0) >= job.run for job in jobs)
    assert len({job.spec.user for job in jobs}) == 20


def test_people_work_by_day() -> None:
    jobs = generate(Workload(jobs=5000), NODES, "extend")
    hours = [job.at // HOUR for job in jobs]
    day = sum(1 for hour in hours if 9 <= hour % 24 < 18)
    weekend = sum(1 for hour in hours if hour // 24 % 7 >= 5)
    assert day / 5000 > 0.6 and weekend / 5000 < 0.2
    steady = generate(Workload(jobs=5000, rhythm=False), NODES, "extend")
    assert sum(1 for each in steady if 9 <= each.at // HOUR % 24 < 18) / 5000 < 0.45


def test_some_outlast_their_estimates() -> None:
    extended, killed = (generate(Workload(jobs=1000), NODES, each) for each in ("extend", "kill"))
    cut = [one.id for one, other in zip(extended, killed, strict=True) if one.run > other.run]
    assert 5 <= len(cut) <= 50


def test_another_seed_by_hand(tmp_path: Path) -> None:
    text = "nodes: [{name: n, resources: {cpu: 4}}]\ngenerate: {jobs: 5, seed: 1}\n"
    assert read(tmp_path, "t.yaml", text, seed=9).arrivals != read(tmp_path, "t.yaml", text).arrivals
