"""Slurm's commands against a running server with three nodes: what tools send, and what they read."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from tests.slurm.cluster import Cluster
from tests.until import until

SOURCES = str(Path(fairlead.__file__).parents[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_script_runs_with_its_options(cluster: Cluster) -> None:
    script = """#!/bin/bash
#SBATCH -J "a name" -c 2 --mem=100 # a comment
#SBATCH --output=out-%x-%j-%u-%%.txt
#SBATCH -t 5
echo "$1" "$SLURM_JOB_NAME" "$SLURM_CPUS_PER_TASK" "$SLURM_MEM_PER_NODE" "$SLURM_JOB_NODELIST" "$SLURM_JOB_NUM_NODES"
#SBATCH --time=1
echo "$PWD $MINE $0"
cat
"""
    (cluster.work / "job.sh").write_text(script)
    done = cluster.ask("sbatch", "job.sh", "one word", MINE="yes")
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout) and not done.stderr
    job = done.stdout.split()[-1]
    (cluster.work / "job.sh").write_text("changed")
    assert cluster.ended(job) == "COMPLETED"
    user = pwd.getpwuid(os.geteuid()).pw_name
    first, second = cluster.file(f"out-a name-{job}-{user}-%.txt").splitlines()
    assert re.fullmatch(r"one word a name 2 100 n[123] 1", first)
    assert second.startswith(f"{cluster.work} yes ") and "slurm_script" in second
    shown = cluster.run("scontrol", "show", "job", job)
    assert f"JobId={job} JobName=a name" in shown and "TimeLimit=00:05:00" in shown and "CPUs/Task=2" in shown
    assert "JobState=COMPLETED Reason=None" in shown and f"WorkDir={cluster.work}" in shown


def test_the_first_three_commands_of_strangers(cluster: Cluster) -> None:
    """What the first users of another project tried: `--parsable`, `squeue --name`, `%k` and `%A`."""
    job = cluster.run("sbatch", "--parsable", "-J", "mine", "--comment", "read me", "-H", "--wrap", "true")
    assert re.fullmatch(r"\d+\n", job)
    assert cluster.run("squeue", "--name", "mine", "-h", "-o", "%A|%k|%j") == f"{job.strip()}|read me|mine\n"
    assert cluster.run("squeue", "--name", "other", "-h") == ""
    cluster.run("scancel", "-n", "mine")
    assert cluster.ended(job.strip()) == "CANCELLED"


def test_an_array_has_ids_and_a_throttle(cluster: Cluster) -> None:
    job = cluster.sbatch(
        "-a", "0-5:2,9%1", "--wrap", "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID $SLURM_ARRAY_TASK_MAX"
    )
    until(lambda: cluster.ended(job) == "COMPLETED")
    until(lambda: cluster.run("squeue", "-h", "-j", job, "-t", "all", "-o", "%t").split() == ["CD"] * 4)
    assert cluster.file(f"slurm-{job}_4.out") == f"{job} 4 {job}_4 9\n"
    rows = cluster.run("sacct", "-nX", "-j", job, "--parsable2", "-o", "JobID,State,ExitCode,NCPUS").splitlines()
    assert rows == [f"{job}_{at}|COMPLETED|0:0|1" for at in (0, 2, 4, 9)]
    held = cluster.sbatch("-a", "1-5%2", "-H", "--wrap", "true")
    assert cluster.run("squeue", "-h", "-j", held, "-o", "%i %t %r") == f"{held}_[1-5%2] PD JobHeldUser\n"
    assert cluster.run("squeue", "-h", "-r", "-j", f"{held}_[2-3]", "-o", "%i").split() == [f"{held}_2", f"{held}_3"]
    cluster.run("scancel", f"{held}_[1-2]", f"{held}_4")
    assert cluster.run("squeue", "-h", "-j", held, "-o", "%i").strip() == f"{held}_[3,5%2]"
    cluster.run("scancel", held)


def test_a_job_of_several_nodes_runs_its_script_on_the_first(cluster: Cluster) -> None:
    job = cluster.sbatch(
        "-N",
        "3",
        "-n",
        "5",
        "-c",
        "1",
        "--wrap",
        "echo $SLURM_JOB_NODELIST $SLURM_NTASKS $SLURM_TASKS_PER_NODE; sleep 2; exit 0",
    )
    until(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%t %D %N").strip() == "R 3 n[1-3]")
    assert cluster.ended(job) == "COMPLETED"
    nodes, tasks, spread = cluster.file(f"slurm-{job}.out").split()
    assert set(cluster.run("scontrol", "show", "hostnames", nodes).split()) == {"n1", "n2", "n3"}
    assert (tasks, spread) == ("5", "2(x2),1")
    failed = cluster.sbatch("-N", "2", "--wrap", "exit 4")
    assert cluster.ended(failed) == "FAILED"
    [row] = cluster.run("sacct", "-nXP", "-j", failed, "-o", "State,ExitCode,NNodes").split()
    assert row == "FAILED|4:0|2"


def test_wait_exits_as_the_job(cluster: Cluster) -> None:
    assert cluster.ask("sbatch", "-W", "--wrap", "exit 7").returncode == 7
    assert cluster.ask("sbatch", "--wait", "-Q", "--wrap", "true").stdout == ""


def test_output_is_truncated_or_appended_to(cluster: Cluster) -> None:
    for mode, lines in (("truncate", 1), ("append", 2)):
        cluster.run("sbatch", "-W", "-o", "same.txt", "--open-mode", mode, "--wrap", "echo line")
        assert len((cluster.work / "same.txt").read_text().splitlines()) == lines


def test_the_batch_shell_is_warned_before_the_limit(cluster: Cluster) -> None:
    script = "#!/bin/bash\ntrap 'echo warned; exit 3' USR1\nsleep 60 & wait\n"
    job = cluster.sbatch("-t", "0:11", "--signal=B:USR1@10", text=script)
    assert cluster.ended(job) == "FAILED"
    assert cluster.file(f"slurm-{job}.out") == "warned\n"


def test_queues_are_partitions_and_nodes_have_features(cluster: Cluster) -> None:
    assert cluster.run("sinfo", "-o", "%P,%m") == "PARTITION,MEMORY\nmain,4096\nml,4096\n"
    job = cluster.sbatch("-p", "ml", "-C", "blue", "-w", "n1", "-H", "--wrap", "true")
    assert cluster.run("squeue", "-h", "-p", "ml", "-o", "%P %f").strip() == "ml blue"
    cluster.run("scontrol", "release", job)
    assert cluster.ended(job) == "COMPLETED"
    assert cluster.run("sacct", "-nXP", "-j", job, "-o", "nodelist%-20,partition").strip() == "n1|ml"
    named = cluster.sbatch("-w", "n[2-3]", "--wrap", "true")
    assert cluster.ended(named) == "COMPLETED"
    assert cluster.run("sacct", "-nXP", "-j", named, "-o", "nodelist").strip() == "n[2-3]"


def test_json_has_what_tools_read(cluster: Cluster) -> None:
    job = cluster.sbatch("--wrap", "exit 2")
    cluster.ended(job)
    [past] = json.loads(cluster.run("sacct", "--json", "-j", job))["jobs"]
    assert (past["state"]["current"], past["exit_code"]["return_code"], past["name"]) == ("FAILED", 2, "wrap")
    live = json.loads(cluster.run("squeue", "--json", "-t", "all", "-j", job))["jobs"]
    assert [(entry["job_id"], entry["job_state"]) for entry in live] == [(int(job), "FAILED")]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["sbatch", "--foo"], 255, "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n"),
        (["sbatch", "--bb=1", "--wrap", "true"], 1, "sbatch: error: --bb is not supported: there are no burst buffers"),
        (["sbatch", "nofile"], 1, "sbatch: error: Unable to open file nofile\n"),
        (["sbatch", "-p", "no", "--wrap", "true"], 1, "Invalid partition name specified\n"),
        (["sbatch", "-n", "x", "--wrap", "true"], 1, 'sbatch: error: Invalid numeric value "x" for --ntasks.\n'),
        (["sbatch", "-t", "x", "--wrap", "true"], 255, "sbatch: error: Invalid --time specification\n"),
        (["sbatch", "-a", "x", "--wrap", "true"], 1, "Invalid job array specification\n"),
        (["sbatch", "-d", "foo", "--wrap", "true"], 1, "Job dependency problem\n"),
        (["squeue", "-t", "foo"], 1, "squeue: error: Invalid job state specified: foo\n"),
        (["squeue", "-j", "999999"], 1, "slurm_load_jobs error: Invalid job id specified\n"),
        (["scancel"], 1, "scancel: error: No job identification provided\n"),
        (["scancel", "abc"], 1, "scancel: error: Invalid job id abc\n"),
        (["scontrol", "show", "job", "999999"], 1, "slurm_load_jobs error: Invalid job id specified\n"),
        (["scontrol", "show", "node", "no"], 1, "Node no not found\n"),
        (["scontrol", "foo"], 1, "invalid keyword: foo\n"),
    ],
)
def test_mistakes_are_told_as_slurm_tells_them(cluster: Cluster, words: list[str], code: int, error: str) -> None:
    done = cluster.ask(*words)
    assert done.returncode == code and error in done.stderr + done.stdout, done


def test_another_program_is_never_replaced(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    done = cluster.up.ask("slurm", "install", str(tmp_path))
    assert done.returncode == 1 and "is another program" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["squeue"]


def test_a_token_is_not_passed_on(cluster: Cluster) -> None:
    token = (cluster.up.folder / "token").read_text().strip()
    done = cluster.ask(
        "sbatch", "-W", "-o", "env.txt", "--wrap", "env", FAIRLEAD_URL=cluster.up.url, FAIRLEAD_TOKEN=token
    )
    assert done.returncode == 0 and token not in (cluster.work / "env.txt").read_text()


def test_commands_start_fast() -> None:
    """Modules that take long to import are not needed by `sbatch`."""
    code = "import sys, fairlead.slurm.sbatch, fairlead.client.sync; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"typer", "rich", "yaml", "asyncio", "cryptography"} & set(re.findall(r"'(\w+)'", loaded))


def test_quick_steps_need_few_modules() -> None:
    code = "import sys, fairlead.slurm.commands, fairlead.slurm.launch; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-IS", "-c", f"import sys; sys.path.append({SOURCES!r}); {code}"],
                            capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert not {"typing", "re", "enum", "signal", "msgspec"} & set(re.findall(r"'(\w+)'", loaded))


STEPS = """#!/bin/bash
#SBATCH -N 2 -n 4
export FOO="a b"
srun -l sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURMD_NODENAME $FOO $RANK'
srun -n2 sh -c 'exit $((SLURM_PROCID + 3))' 2>/dev/null; echo rc=$?
echo input | srun -n1 cat
srun -n3 -o step-%t.txt sh -c 'echo $SLURM_PROCID'
srun -n100 true; echo rc=$?
printf '0 echo first %%t\\n* echo other %%t\\n' > programs
srun -n3 --multi-prog programs | sort
srun -n4 -K sh -c '[ $SLURM_PROCID = 1 ] && exit 9; sleep 60' 2>/dev/null; echo rc=$?
"""


def test_steps_run_in_the_allocation(cluster: Cluster) -> None:
    (cluster.work / "steps").mkdir()
    job = cluster.sbatch("-D", str(cluster.work / "steps"), text=STEPS)
    assert cluster.ended(job) == "COMPLETED"
    nodes = cluster.run("sacct", "-nXP", "-j", job, "-o", "nodelist").strip()
    first, second = cluster.run("scontrol", "show", "hostnames", nodes).split()
    lines = cluster.file(f"steps/slurm-{job}.out").splitlines()
    expected = {
        f"{task}: {task} {task % 2} {task // 2} 4 {node} a b"
        for task, node in enumerate([first, first, second, second])
    }
    swapped = {
        f"{task}: {task} {task % 2} {task // 2} 4 {node} a b"
        for task, node in enumerate([second, second, first, first])
    }
    assert set(lines[:4]) in (expected, swapped)
    assert lines[4:] == [
        "rc=4",
        "input",
        f"srun: error: Unable to create step for job {job}: More processors requested than permitted",
        "rc=1",
        "first 0",
        "other 1",
        "other 2",
        "rc=143",
    ]
    assert [(cluster.work / "steps" / f"step-{task}.txt").read_text() for task in range(3)] == ["0\n", "1\n", "2\n"]


def test_srun_and_salloc_allocate_and_give_back(cluster: Cluster) -> None:
    done = cluster.ask("srun", "-N2", "-l", "sh", "-c", "echo $SLURM_JOB_NUM_NODES; exit $SLURM_PROCID")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (1, ["0: 2", "1: 2"])
    done = cluster.ask("salloc", "-n1", "-J", "mine", "sh", "-c", "echo $SLURM_JOB_ID; srun echo step; exit 5")
    job, step = done.stdout.split()
    assert (step, done.returncode) == ("step", 5) and f"Granted job allocation {job}" in done.stderr
    assert cluster.ended(job) == "COMPLETED"
    assert cluster.ask("srun", "-n1", "cat", text="given\n").stdout == "given\n"


LISTED = """#!/bin/bash
#SBATCH -N 2 -n 2
srun -N1 -n1 -J first sh -c 'exit 3'
srun -l true
srun -n1 -N1 sh -c 'kill -9 $$'
echo $(srun -N1 -n1 sh -c 'echo $SLURM_STEP_ID') > number.txt
srun -J last sleep 600
"""


def test_steps_are_listed_with_their_ends(cluster: Cluster) -> None:
    job = cluster.sbatch(text=LISTED)
    until(lambda: f"{job}.4" in cluster.run("squeue", "-h", "-s", "-o", "%i"))
    assert cluster.file("number.txt") == "3\n"
    assert cluster.run("squeue", "-h", "-s", f"{job}.4", "-o", "%i %j %D").split() == [f"{job}.4", "last", "2"]
    shown = cluster.run("scontrol", "show", "step")
    assert re.search(rf"StepId={job}.4 .*\n.*State=RUNNING .*NodeList=n.*\n.*Tasks=2 Name=last", shown)
    assert cluster.run("sstat", "-nPaj", job, "-o", "JobID,NTasks").split() == [f"{job}.batch|1", f"{job}.4|2"]
    cluster.run("scancel", job)
    assert cluster.ended(job) == "CANCELLED"
    rows = cluster.run("sacct", "-nP", "-j", job, "-o", "JobID,JobName,State,ExitCode,NTasks,NNodes").splitlines()
    assert [row.partition(" by ")[0] for row in rows[:2]] == [
        f"{job}|sbatch|CANCELLED",
        f"{job}.batch|batch|CANCELLED",
    ]
    assert rows[2:] == [
        f"{job}.0|first|FAILED|3:0|1|1",
        f"{job}.1|true|COMPLETED|0:0|2|2",
        f"{job}.2|sh|FAILED|0:9|1|1",
        f"{job}.3|sh|COMPLETED|0:0|1|1",
        f"{job}.4|last|CANCELLED by {os.geteuid()}|0:15|2|2",
    ]
    [step] = cluster.run("sacct", "-nP", "-j", f"{job}.2", "-o", "JobID,State").splitlines()
    assert step == f"{job}.2|FAILED"
    assert len(cluster.run("sacct", "-nXP", "-j", job).splitlines()) == 1


def test_steps_from_outside_are_listed(cluster: Cluster) -> None:
    steps = "srun -n1 -J one true; srun -n2 -J two false; srun --jobid $SLURM_JOB_ID -n1 sh -c 'echo $SLURM_STEP_ID'"
    done = cluster.ask("salloc", "-N2", "sh", "-c", f"echo $SLURM_JOB_ID; {steps}")
    job, number = done.stdout.split()
    assert number == "2"
    until(lambda: cluster.ended(job) == "COMPLETED")
    rows = cluster.run("sacct", "-nP", "-j", job, "-o", "JobID,JobName,State,NTasks").splitlines()
    assert rows[1:] == [f"{job}.0|one|COMPLETED|1", f"{job}.1|two|FAILED|2", f"{job}.2|sh|COMPLETED|1"]
    assert cluster.ask("srun", "-n2", "-J", "alone", "sh", "-c", "exit 5").returncode == 5
    rows = cluster.run("sacct", "-nP", "--name", "alone", "-o", "JobID,State,ExitCode,NTasks").splitlines()
    assert [row.partition("|")[2] for row in rows] == ["FAILED|5:0|", "FAILED|5:0|2"]
    assert rows[1].startswith(rows[0].partition("|")[0] + ".0|")


SIGNALS = """#!/bin/bash
trap 'echo script' USR1
srun -J waits sh -c 'trap "echo step; exit 4" USR1; echo ready; while :; do sleep 0.05; done'
echo rc=$?
srun -J second sleep 600
echo rc=$?
"""


@pytest.mark.parametrize(
    ("options", "nodes", "output"),
    [((), 1, "ready\nstep\n"), (("-f",), 1, "ready\nstep\nscript\n"), ((), 2, "ready\nready\nstep\nstep\n")],
)
def test_signals_reach_steps_or_the_script(cluster: Cluster, options: tuple[str, ...], nodes: int, output: str) -> None:
    job = cluster.sbatch("-N", str(nodes), "-e", "/dev/null", text=SIGNALS)
    until(lambda: cluster.file(f"slurm-{job}.out") == "ready\n" * nodes)
    cluster.run("scancel", "-s", "SIGUSR1", *options, job)
    until(lambda: f"{job}.1" in cluster.run("squeue", "-h", "-s", "-o", "%i"))
    assert cluster.file(f"slurm-{job}.out") == f"{output}rc=4\n"
    cluster.run("scancel", f"{job}.1")
    assert cluster.ended(job) == "COMPLETED"
    assert cluster.file(f"slurm-{job}.out") == f"{output}rc=4\nrc=143\n"
    states = cluster.run("sacct", "-nP", "-j", job, "-o", "JobID,ExitCode").splitlines()[2:]
    assert states == [f"{job}.0|4:0", f"{job}.1|0:15"]


def test_a_signal_needs_a_running_job_and_a_name(cluster: Cluster) -> None:
    held = cluster.sbatch("-H", "--wrap", "true")
    for words, error in (
        (["-s", "FOO", held], "scancel: error: Unknown job signal: FOO\n"),
        (["-s", "USR1", held], f"scancel: error: Kill job error on job id {held}: Job is pending execution\n"),
        (
            [f"{held}.3"],
            f"scancel: error: Kill job error on job id {held}.3: Job/step already completing or completed\n",
        ),
    ):
        done = cluster.ask("scancel", *words)
        assert (done.returncode, done.stderr) == (1, error)
    assert cluster.run("squeue", "-h", "-j", held, "-o", "%t").strip() == "PD"
    cluster.run("scancel", "-s", "9", held)
    assert cluster.ended(held) == "CANCELLED"


def test_jobs_are_updated_and_tasks_requeued(cluster: Cluster) -> None:
    job = cluster.sbatch("-H", "-a", "1-3%1", "--wrap", "sleep 600")
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1:00:00", "Partition=ml", "Comment=new", "JobName=b c",
                "ArrayTaskThrottle=2", "MinMemoryNode=64", "Nice=5")  # fmt: skip
    shown = cluster.run("squeue", "-h", "-j", job, "-o", "%i|%l|%P|%k|%j|%m|%y")
    assert shown == f"{job}_[1-3%2]|1:00:00|ml|new|b c|64M|5\n"
    assert "cannot be held; name job" in cluster.ask("scontrol", "hold", f"{job}_2").stderr
    cluster.run("scontrol", "release", f"JobId={job}")
    until(lambda: len(cluster.run("squeue", "-h", "-j", job, "-t", "R").splitlines()) == 2)
    cluster.run("scontrol", "requeue", f"{job}_[1]")
    until(lambda: "1" in cluster.run("squeue", "-h", "-r", "-j", f"{job}_1", "-t", "R", "-O", "restartcnt").split())
    assert "0" in cluster.run("squeue", "-h", "-j", f"{job}_2", "-O", "restartcnt").split()
    for words, error in (
        (["features=x"], "update of features is not supported"),
        (["Partition=no"], "Invalid partition name specified"),
        (["TimeLimit=x"], "slurm_update error"),
    ):
        assert error in cluster.ask("scontrol", "update", f"jobid={job}", *words).stderr
    cluster.run("scancel", job)


PARTS = """#!/bin/bash
#SBATCH -J parts -n 1
#SBATCH hetjob
#SBATCH -N 2 -c 2
echo $SLURM_HET_SIZE $SLURM_JOB_NODELIST_HET_GROUP_0 $SLURM_JOB_NODELIST_HET_GROUP_1
srun --het-group=0 sh -c 'echo zero $SLURMD_NODENAME $SLURM_CPUS_ON_NODE'
srun --het-group=1 sh -c 'echo one $SLURMD_NODENAME $SLURM_PROCID $SLURM_NTASKS'
"""


@pytest.mark.parametrize("split", [False, True])
def test_a_job_of_several_parts_starts_together(cluster: Cluster, split: bool) -> None:
    if split:
        script = "#!/bin/bash\n" + PARTS.partition("-c 2\n")[2]
        job = cluster.sbatch("-J", "parts", "-n1", ":", "-N2", "-c2", "/dev/stdin", text=script)
    else:
        job = cluster.sbatch(text=PARTS)
    assert cluster.ended(job) == "COMPLETED"
    first, zero, *ones = cluster.file(f"slurm-{job}.out").splitlines()
    size, own, others = first.split()
    assert size == "2" and zero.split()[:2] == ["zero", own]
    names = cluster.run("scontrol", "show", "hostnames", others).split()
    assert sorted(ones) == sorted(f"one {name} {at} 2" for at, name in enumerate(names))
    for command in ("salloc", "srun"):
        assert ": are not supported" in cluster.ask(command, "-n1", ":", "-n1", "true").stderr


def test_a_singleton_waits_for_jobs_of_its_name(cluster: Cluster) -> None:
    first = cluster.sbatch("-J", "one", "--wrap", "sleep 600")
    second = cluster.sbatch("-J", "one", "-d", "singleton", "--wrap", "true")
    assert cluster.run("squeue", "-h", "-j", second, "-o", "%t %r %E") == "PD Dependency singleton(unfulfilled)\n"
    cluster.run("scancel", first)
    assert cluster.ended(second) == "COMPLETED"


def test_a_folder_of_the_job_is_made(cluster: Cluster) -> None:
    job = cluster.run("sbatch", "-W", "--parsable", "-o", "new/%j/out", "-e", "new/%x/e", "--wrap", "echo 1")
    assert (cluster.work / "new" / job.strip() / "out").read_text() == "1\n"
    assert cluster.ask("sbatch", "-W", "-o", "missing/out", "--wrap", "true").returncode == 2


def test_what_other_tools_send(cluster: Cluster) -> None:
    """The lines of Open OnDemand, batchspawner and NeMo-Run, and what these read."""
    mark = "\x1f"
    fields = (
        "Account JobID JobArrayID BatchHost NumCPUs Name TimeLimit NodeList Partition StateCompact UserName WorkDir"
    )
    script = "#!/bin/bash\nsleep 600\n"
    own = ["-D", str(cluster.work), "-J", "ood", "--begin", "now", "-t", "00:10:00", "-A", "lab", "--export", "NONE"]
    job = cluster.sbatch(*own, "--mail-user", "a@b.c", "--mail-type", "NONE", "--requeue", "-n", "1", text=script)
    until(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T %B").startswith("RUNNING n"))
    wanted = ",".join(f"{name}:{mark}" for name in fields.split())
    shown = cluster.run("squeue", "--all", "--states=all", "--noconvert", "-O", wanted, "-j", job).splitlines()[1]
    values = dict(zip(fields.split(), shown.split(mark), strict=False))
    assert [values[name] for name in ("Account", "JobID", "Name", "TimeLimit")] == ["lab", job, "ood", "10:00"]
    columns = ["-o", "jobid,account,state,elapsed,nodelist", "-j", job]
    past = cluster.run("sacct", "-P", "--delimiter", mark, "-n", "--units", "G", "--allocations", *columns)
    assert past.split(mark)[:3] == [job, "lab", "RUNNING"]
    assert re.fullmatch(r"\d+/\d+/\d+/3 \d+/\d+/\d+/12\n", cluster.run("sinfo", "-aho", "%F %C", "-p", "main"))
    after = cluster.sbatch("--requeue", "--dependency=singleton", "-J", "ood", "--wrap", "true")
    start = cluster.run("squeue", "--start", "--noheader", "-j", after, "-o", "%i|%S|%T")
    assert re.fullmatch(rf"{after}\|[^|]+\|PENDING\n", start)
    assert set(cluster.run("squeue", "-n", "ood", "-h", "-o", "%A").split()) == {job, after}
    assert cluster.run("sacct", "-j", after, "--format=State", "--noheader", "--parsable2") == "PENDING\n"
    cluster.run("scancel", job, after)
