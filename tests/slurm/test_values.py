"""Values, formats and lists in Slurm's notation."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from fairlead.slurm.launch import FLAGS, STEPS, VALUED, run_here
from fairlead.slurm.options import Given, parse
from fairlead.slurm.request import Wrong, after_of, array_of, constraints, pattern_code, shape_of
from fairlead.slurm.rows import parse_ids, reason_word
from fairlead.slurm.step_lines import read_lines
from fairlead.slurm.tables import SBATCH, SQUEUE, SRUN, TABLES
from fairlead.slurm.values import format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("2-0", 172_800),
        ("1-2:3", 93_780),
        ("1-0:0:1", 86_401),
        ("UNLIMITED", None),
    ],
)
def test_a_time_limit(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_times_are_shown() -> None:
    assert [format_duration(s) for s in (5, 65, 3665, 90_000)] == ["0:05", "1:05", "1:01:05", "1-01:00:00"]


def test_sizes() -> None:
    assert [parse_size(text) for text in ("100", "2G", "1500K", "1T")] == [100, 2048, 2, 1_048_576]


def test_options_are_read_as_getopt_long_does() -> None:
    given, rest = parse(SBATCH, ["-N2", "--mem=4", "-J", "a b", "--exclus", "-Wn4", "x.sh", "--foo"])
    assert given == {"nodes": "2", "mem": "4", "job-name": "a b", "exclusive": "", "wait": "", "ntasks": "4"}
    assert rest == ["x.sh", "--foo"]
    assert parse(SQUEUE, ["7", "-h", "--job=3"]) == ({"noheader": "", "jobs": "3"}, ["7"])


def test_every_option_says_what_it_does() -> None:
    for table in TABLES:
        names = [name for option in table.options for name in (option.short, *option.longs) if name]
        assert len(names) == len(set(names)), table.name
        assert all(option.text for option in table.options)


def test_quick_steps_read_options_as_the_table_says() -> None:
    options = {name: option for option in SRUN.options for name in (option.short, *option.longs)}
    assert all(options[name].value and not options[name].optional for name in VALUED)
    assert all(not options[name].value or options[name].optional for name in FLAGS)


@pytest.mark.parametrize(
    ("words", "nodes", "more"),
    [
        (["-l", "true"], "n1", {}),
        (["-n2", "-N2", "true"], "n1,n2", {}),
        (["-n5", "true"], "n1", {}),
        (["-nx", "true"], "n1", {}),
        (["-n1"], "n1", {}),
        (["-n1", "a", ":", "b"], "n1", {}),
        (["true"], "n1", {"SLURM_LABELIO": "1"}),
        (["true"], "n2,n1", {}),
    ],
)
def test_quick_steps_leave_the_rest_to_srun(words: list[str], nodes: str, more: dict[str, str], tmp_path: Path) -> None:
    own = {STEPS: str(tmp_path / "log"), "FAIRLEAD_NODE": "n1", "FAIRLEAD_NODES": nodes, "SLURM_CPUS_ON_NODE": "4"}
    assert run_here(words, {**own, **more}) is None
    assert not (tmp_path / "log").exists()


def test_lines_of_steps_are_read_among_others() -> None:
    steps = read_lines(
        "srun: step 0 began 10.5 2 4 n1,n2 a name\nsrun: step 1 began 11.0 1 1 n1 x\nsrun: step\nhello\n"
        "srun: step 9 ended 12.0 1 1.0 5\nsrun: step 0 ended 12.0 3 1.5 4096\nsrun: step 2 began 13"
    )
    assert [(s.number, s.name, s.nodes, s.ended, s.code) for s in steps] == [
        (0, "a name", ["n1", "n2"], 12.0, 3),
        (1, "x", ["n1"], None, 0),
    ]


class Nodes:
    def most_cpus(self) -> int:
        return 4

    def usual_cpus(self) -> int:
        return 4

    def models(self, name: str) -> list[str]:
        return ["NVIDIA-A100"] if name == "a100" else []


@pytest.mark.parametrize(
    ("options", "nodes", "tasks", "cpus", "memory", "gpus"),
    [
        ({}, 1, 1, 1, 0, 0),
        ({"ntasks": "4"}, 1, 4, 4, 0, 0),
        ({"ntasks": "8"}, 2, 8, 4, 0, 0),
        ({"ntasks": "6", "cpus-per-task": "2"}, 3, 6, 4, 0, 0),
        ({"nodes": "2"}, 2, 2, 1, 0, 0),
        ({"nodes": "2", "ntasks-per-node": "3"}, 2, 6, 3, 0, 0),
        ({"nodes": "2-4", "exclusive": ""}, 2, 2, 4, 0, 0),
        ({"cpus-per-task": "2", "mem-per-cpu": "1G"}, 1, 1, 2, 2048, 0),
        ({"mem": "0"}, 1, 1, 1, 0, 0),
        ({"gres": "gpu:a100:2", "cpus-per-gpu": "3"}, 1, 1, 6, 0, 2),
        ({"gpus": "4", "nodes": "2"}, 2, 2, 1, 0, 2),
        ({"gpus-per-task": "1", "ntasks-per-node": "2", "nodes": "1"}, 1, 2, 2, 0, 2),
        ({"nodelist": "n[1-3]"}, 3, 3, 1, 0, 0),
    ],
)
def test_what_options_ask_for(
    options: dict[str, str], nodes: int, tasks: int, cpus: int, memory: int, gpus: int
) -> None:
    shape, _ = shape_of(Given(options), Nodes())  # type: ignore[arg-type]
    found = (shape.nodes, shape.tasks, shape.cpus, shape.memory, shape.resources.get("gpu", 0))
    assert found == (nodes, tasks, cpus, memory, gpus)


def test_arrays_and_dependencies() -> None:
    assert array_of("0-6:3,9%2") == [0, 3, 6, 9]
    assert after_of("afterok:7:8,afterany:9,singleton") == ["7", "8", "9:any"]
    for text in ("afterok:7?afterok:8", "singleton:3", "foo:3", "afterok"):
        with pytest.raises(Wrong):
            after_of(text)


def test_constraints_are_alternatives() -> None:
    assert constraints("a&b|c") == ["a, b", "c"]
    assert constraints("[x|y]") == ["x", "y"]
    with pytest.raises(Wrong):
        constraints("[a*2&b*1]")


def test_a_pattern_is_a_word_of_a_shell() -> None:
    variables = {"SLURM_JOB_ID": "7_3", "FAIRLEAD_JOB": "7", "SLURM_ARRAY_TASK_ID": "13", "FAIRLEAD_NODE": "n1"}
    for pattern, name in {
        "a b-%j.%%": "a b-7_3.%",
        "%A_%4a-%N-%x-%u": "7_0013-n1-it's-ann",
        "%q$(ls)": "%q$(ls)",
        "%b.%t": "3.0",
        "\\%j": "%j",
    }.items():
        word = pattern_code(pattern, "it's", "ann")
        done = subprocess.run(
            ["sh", "-c", f"printf %s {word}"], env=variables, capture_output=True, text=True, check=True
        )
        assert done.stdout == name, pattern


@pytest.mark.parametrize(
    ("nodes", "folded"),
    [
        ("n1,n2,n3", "n[1-3]"),
        ("n2,n1", "n2,n1"),
        ("n1,n2,n4,x", "n[1-2,4],x"),
        ("a,b", "a,b"),
        ("n9,n10", "n[9-10]"),
        ("n08,n09,n10", "n[08-10]"),
    ],
)
def test_the_list_of_nodes_keeps_its_order(nodes: str, folded: str) -> None:
    start = files("fairlead.slurm").joinpath("start.sh").read_text()
    words = ["sh", "-c", start, "sh", 'printf "$SLURM_JOB_NODELIST"; exit', "0"]
    environment = {"PATH": "/usr/bin:/bin", "FAIRLEAD_NODES": nodes, "FAIRLEAD_NODE": nodes.split(",", maxsplit=1)[0]}
    assert subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout == folded


def test_ids_of_jobs_and_tasks() -> None:
    assert list(parse_ids("7,8_3,9_[1-4:3%2],6.batch")) == [("7", None), ("8", {3}), ("9", {1, 4}), ("6", None)]


@pytest.mark.parametrize(
    ("text", "word"),
    [("no capacity", "Resources"), ("waits for job 3", "Dependency"),
     ("waits for the end of job 1", "Dependency"), ("throttle of 2 reached", "JobArrayTaskLimit"),
     ("behind other jobs", "Priority"), ("begins at 10:00", "BeginTime"), ("", "None")],
)  # fmt: skip
def test_reasons_are_words_of_slurm(text: str, word: str) -> None:
    assert reason_word(text, False) == word
    assert reason_word(text, True) == "JobHeldUser"
