"""Command lines on a real Slurm and on ours, with the same jobs: exit status, output and errors are compared.

Numbers that differ by nature, such as times, are masked. What else differs is in `DIFFERENT`, and in docs/slurm.md.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.real import RealSlurm, is_here

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_here(), reason="no daemons of Slurm are installed (apt install slurm-wlm munge)"),
]

LETTERS = "aAbBcCdDeEfFGhHiIjJkKlLmMnNoOPqrRStTuUvVwWxXyYzZ"
NAMES = (
    "Account ArrayJobID ArrayTaskID BatchFlag BatchHost Comment Contiguous CoreSpec Dependency EndTime Feature "
    "JobArrayID JobID Licenses MinCpus MinMemory MinTmpDisk Name Nice NodeList NumCPUs NumNodes NumTasks OverSubscribe "
    "Partition QOS Reason ReasonList ReqNodes Requeue Reservation RestartCnt SchedNodes sct StartTime State "
    "StateCompact STDERR STDIN STDOUT SubmitTime TimeLimit TimeUsed UserName WCKey WorkDir"
).split()
SINFO = "aAcCdDfFgGhIlLmNpPrRsStTwXYzZ"
JOBS = (
    "sbatch --hold -J first --comment=text -t 10 -c 2 --mem=100 -C blue --wrap true",
    "sbatch -H --parsable -a 1-5:2,9%2 --wrap true",
    "sbatch -Q -H -N2 -n4 -w n[1-2] --wrap true",
    "sbatch --parsable -p ml --begin=now+1hour -J later --wrap true",
    "sbatch -o run-%j.txt -t 1:00:00 -w n1 -J runs --wrap 'sleep 600'",
)
"""These get the ids 1 to 5. The last one runs."""
MISTAKES = """
sbatch --foo
sbatch -z
sbatch --wrap
sbatch -n
sbatch --nt=1 --wrap true
sbatch nofile
sbatch --wrap true script.sh
sbatch -p nope --wrap true
sbatch -n x --wrap true
sbatch -n 0x --wrap true
sbatch -c x --wrap true
sbatch -c 0 --wrap true
sbatch -t x --wrap true
sbatch --time=1:x --wrap true
sbatch --mem x --wrap true
sbatch --mem-per-cpu=1X --wrap true
sbatch -a x --wrap true
sbatch -a 1- --wrap true
sbatch -d foo --wrap true
sbatch -d afterok --wrap true
sbatch -d afterok:x --wrap true
sbatch -N x --wrap true
sbatch --ntasks-per-node=x --wrap true
squeue --foo
squeue -Z
squeue -j
squeue -j 9999
squeue -j x
squeue -t foo
squeue -t R,foo
squeue -S ?
squeue -O foo
scancel
scancel abc
scancel 9999
scancel --foo
scancel -t foo
scontrol foo
scontrol show foo
scontrol show job 9999
scontrol show node nope
scontrol show partition nope
scontrol hold 9999
scontrol release 9999
scontrol requeue 9999
sinfo --foo
sinfo -O foo
srun
srun --foo
salloc --foo
scontrol update foo=bar
"""
READS = """
squeue
squeue -h
squeue -l
squeue -s
squeue -r
squeue -a
squeue --me
squeue -u root
squeue -u nobody
squeue -p main
squeue -p ml -h
squeue -p nope
squeue -n first
squeue -n first,later -h -o %j
squeue --name=none
squeue -j 1
squeue -j 1,3 -h -o %i
squeue -j 1,1 -h -o %i
squeue -j 2
squeue -j 2_9
squeue -j 2 -r -h -o %i
squeue -j 2 --array -h -o %K
squeue -t PD -h -o %i
squeue -t R -h -o %i
squeue -t PENDING,RUNNING -h -o %i
squeue -t all -h -o %i
squeue -t CD -h
squeue -t pd -h -o '%i %t'
squeue -w n1 -h -o %t
squeue -w n9 -h
squeue -A none
squeue -q none -h
squeue -S i -h -o %i
squeue -S -i -h -o %i
squeue -S P,i -h -o '%P %i'
squeue -o '%.18i %.9P %.8j'
squeue -o '%i|%T|%k'
squeue -h -o '%i %t'
squeue --noheader --format=%i,%t
squeue --noheader -o '%i %t' -t all -u root
squeue -h -o '%.3j|%-5j|%5j|%20j'
squeue -h -j 1 -o 'x%iy%tz'
squeue -O JobID,State
squeue -O JobArrayID,StateCompact,Reason -t all --me
squeue -h -O JobID:5,Name:8,State:.12
squeue -h -j 5 -o '%T %B'
squeue -h -j 5 -o %N
squeue --jobs=5 --noheader --format=%T
squeue -h -j 3 -o '%D %C'
squeue -V
sinfo
sinfo -h
sinfo -N
sinfo -l -h
sinfo -N -l -h
sinfo -s
sinfo -s -h
sinfo -p main
sinfo -p nope
sinfo -p ml -h
sinfo -n n1
sinfo -n n9 -h
sinfo -t idle -h -o %t
sinfo -t alloc -h
sinfo -t down -h
sinfo -d
sinfo -r -h -o %D
sinfo -R
sinfo -o %P
sinfo -o '%P,%m'
sinfo --format=%P,%m --noconvert
sinfo -o '%P %G %l %p %c %m'
sinfo -ahO NodeList:20,StateLong
sinfo -h -o '%.5a|%5D|%N'
sinfo -V
scontrol show hostnames n[1-3,5]
scontrol show hostnames n[01-03],x
scontrol show hostname n1,n2
scontrol show hostlist n1,n2,n3
scontrol show hostlist n1,n3,x9
scontrol -o show partition main
scontrol show partition ml
scontrol hold 5
scontrol release 5
scontrol -V
sbatch -V
srun -V
scancel -V
"""
CHANGES = """
scancel 2_1
squeue -h -j 2 -o %i
scancel -n first
squeue -h -n first
scancel -t PD -p ml
squeue -h -p ml
scancel -Q 9999
scancel 2 3
scancel -u root
"""
DIFFERENT = {
    "sbatch --nt=1 --wrap true": "its message has the value too, and other options",
    "squeue -S ?": "it prints the header first",
    "squeue -O foo": "it exits with 0",
    "sinfo -O foo": "it exits with 0, and speaks of jobs",
    "scontrol update foo=bar": "it names reservations too",
    "squeue -h -o '%.3j|%-5j|%5j|%20j'": "it complains about `-`",
    "scontrol -o show partition main": "there is a default partition, and no preemption",
    "scontrol show partition ml": "there is no preemption",
}
"""Command → what the real one does otherwise."""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


COMMANDS = [
    *JOBS,
    *lines(MISTAKES),
    *lines(READS),
    *[f"squeue -h -j {job} -o %{letter}" for letter in LETTERS for job in (1, 5)],
    *[f"squeue -j 1,2 -O {name}:30" for name in NAMES],
    *[f"sinfo -o %{letter}" for letter in SINFO],
    *lines(CHANGES),
]
MASKS = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b(?:\d+-)?(?:\d+:)?\d+:\d\d\b"), "CLOCK"),
    (re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) .*20\d\d"), "DATE"),
    (re.compile(r"/\S*/(?=slurm-|run-|work|jobs)"), "/"),
    (re.compile(r"\bann\b"), "root"),
    (re.compile(r"\bmain\*"), "main"),
    (re.compile("slurm-wlm"), "slurm"),
    (re.compile(r"[ \t]+"), " "),
)


def masked(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    texts = []
    for text in (done.stdout, done.stderr):
        for pattern, mark in MASKS:
            text = pattern.sub(mark, text)  # noqa: PLW2901
        texts.append("\n".join(line.strip() for line in text.splitlines()).strip())
    return done.returncode, texts[0], texts[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, RealSlurm, Path]]:
    ours = Cluster(tmp_path_factory.mktemp("ours"))
    folder = tmp_path_factory.mktemp("real")
    try:
        real = RealSlurm(folder, port=27_917)
        try:
            yield ours, real, folder
        finally:
            real.close()
    finally:
        ours.close()


def test_command_lines_do_the_same(both: tuple[Cluster, RealSlurm, Path]) -> None:
    ours, real, folder = both
    different: dict[str, str] = {}
    (folder / "work").mkdir()
    for command in COMMANDS:
        words = shlex.split(command)
        mine = ["ann" if word == "root" else word for word in words]
        one, two = masked(ours.ask(*mine)), masked(real.run(*words, directory=folder / "work"))
        if one != two:
            different[command] = f"{one} instead of {two}"
    assert len(COMMANDS) >= 150
    unexpected = {command: how for command, how in different.items() if command not in DIFFERENT}
    assert not unexpected, "\n".join(f"{command}\n    {how}" for command, how in unexpected.items())
    assert different.keys() == DIFFERENT.keys()
