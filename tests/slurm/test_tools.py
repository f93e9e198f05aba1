"""Workflow tools from their registries, unmodified, against a running server with three nodes.

Each is installed into an environment of its own, which takes minutes, so these tests are marked `long`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster

HYDRA = """
import os
import hydra

@hydra.main(version_base=None, config_name="c", config_path=".")
def main(config):
    with open(f"{os.environ['HERE']}/out-{config.x}", "w") as file:
        file.write(os.environ["SLURM_PROCID"])

main()
"""
TOIL = """
import os
from toil.common import Toil
from toil.job import Job

def child(job, number):
    return f"{number}:{'SLURM_JOB_ID' in os.environ}"

def root(job):
    small = dict(memory="60M", cores=1, disk="10M")
    return [job.addChildJobFn(child, number, **small).rv() for number in range(3)]

if __name__ == "__main__":
    with Toil(Job.Runner.getDefaultArgumentParser().parse_args()) as toil:
        print("result", toil.start(Job.wrapJobFn(root, memory="60M", cores=1, disk="10M")))
"""
AIIDA = """
import os, subprocess, time
from aiida.common.datastructures import CodeRunMode
from aiida.schedulers.datastructures import JobTemplate, JobTemplateCodeInfo
from aiida.schedulers.plugins.slurm import SlurmJobResource, SlurmScheduler

class Transport:
    def __enter__(self): return self
    def __exit__(self, *rest): pass
    def chdir(self, folder): os.chdir(folder)
    def exec_command_wait(self, command, **more):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

scheduler = SlurmScheduler()
scheduler.set_transport(Transport())
template = JobTemplate()
template.shebang, template.job_name, template.job_environment = "#!/bin/bash", "aiida-1", {}
template.sched_output_path, template.sched_error_path = "_s.out", "_s.err"
template.max_wallclock_seconds, template.max_memory_kb = 300, 65536
template.job_resource = SlurmJobResource(num_machines=2, num_mpiprocs_per_machine=1)
template.submit_as_hold, template.rerunnable = False, False
code = JobTemplateCodeInfo()
code.cmdline_params = ["srun", "-n", "2", "sh", "-c", "echo $SLURM_PROCID; sleep 2"]
code.prepend_cmdline_params, code.join_files, code.stdout_name = [], False, "o.txt"
template.codes_info, template.codes_run_mode = [code], CodeRunMode.SERIAL
with open("job.sh", "w") as file:
    file.write(scheduler.get_submit_script(template))
job = scheduler.submit_job(os.getcwd(), "job.sh")
while scheduler.get_jobs(jobs=[job], as_dict=True).get(job) is not None:
    time.sleep(0.2)
info = scheduler.get_detailed_job_info(job)
parsed = scheduler.parse_output(info, open("_s.out").read(), open("_s.err").read())
print("result", sorted(open("o.txt").read().split()), info["retval"], parsed)
code.cmdline_params = ["sleep", "600"]
with open("job2.sh", "w") as file:
    file.write(scheduler.get_submit_script(template))
print("killed", scheduler.kill_job(scheduler.submit_job(os.getcwd(), "job2.sh")))
"""
MPI = """
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size, MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("tools"))
    try:
        yield cluster
    finally:
        cluster.close()


def install(folder: Path, *packages: str) -> Path:
    """Install packages into an environment, and return the folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    quiet = ["-q", "--no-input", "--disable-pip-version-check"]
    subprocess.run([str(folder / "bin/pip"), "install", *quiet, *packages], check=True)
    return folder / "bin"


def run(cluster: Cluster, folder: Path, programs: Path, *words: str, **more: str) -> str:
    """Run a program with Slurm's commands and those of a tool on the PATH, and return its output."""
    path = f"{programs}:{cluster.bin}:{os.environ['PATH']}"
    environment = {**cluster.up.environment, "PATH": path, "HERE": str(folder), **more}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_hydra(cluster: Cluster, tmp_path: Path) -> None:
    programs = install(tmp_path / "env", "hydra-submitit-launcher==1.2.0", "submitit==1.5.4")
    (tmp_path / "app.py").write_text(HYDRA)
    (tmp_path / "c.yaml").write_text("x: 1\n")
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5", "hydra.launcher.partition=main"]
    run(cluster, tmp_path, programs, f"{programs}/python", "app.py", "--multirun", *launcher, "x=1,2,3")
    assert [(tmp_path / f"out-{x}").read_text() for x in (1, 2, 3)] == ["0"] * 3


@pytest.mark.long
def test_toil(cluster: Cluster, tmp_path: Path) -> None:
    programs = install(tmp_path / "env", "toil==9.6.0")
    (tmp_path / "flow.py").write_text(TOIL)
    options = ["--batchSystem", "slurm", "--statePollingWait", "2", "--defaultMemory", "64M", "--disableProgress"]
    shown = run(cluster, tmp_path, programs, f"{programs}/python", "flow.py", "./store", *options)
    assert "result ['0:True', '1:True', '2:True']" in shown


@pytest.mark.long
def test_aiida(cluster: Cluster, tmp_path: Path) -> None:
    programs = install(tmp_path / "env", "aiida-core==2.9.4")
    (tmp_path / "drive.py").write_text(AIIDA)
    shown = run(cluster, tmp_path, programs, f"{programs}/python", "drive.py", AIIDA_PATH=str(tmp_path))
    assert shown.splitlines()[-2:] == ["result ['0', '1'] 0 None", "killed True"]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI: as root, apt-get install libopenmpi-dev")
def test_mpi(cluster: Cluster, tmp_path: Path) -> None:
    programs = install(tmp_path / "env", "mpi4py")
    (tmp_path / "hello.py").write_text(MPI)
    # All nodes are this machine, so that ranks of two of them must not share memory by the name of the machine.
    words = ["sbatch", "-W", "-N2", "-n4", "-o", "mpi.out", "--wrap", f"mpirun {programs}/python hello.py"]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run(cluster, tmp_path, programs, *words, OMPI_MCA_btl="tcp,self", **as_root)
    assert sorted((tmp_path / "mpi.out").read_text().splitlines()) == [f"rank {rank} of 4 6" for rank in range(4)]


FLOW = """
process align {
  memory '64 MB'
  time '5m'
  input: val x
  output: path "${x}.bam"
  script:
  "echo aligned $x > ${x}.bam"
}
process collect_all {
  publishDir 'out', mode: 'copy'
  input: path f
  output: path 'all.txt'
  script:
  "cat $f | sort > all.txt"
}
workflow { align(Channel.of('a', 'b', 'c', 'd')); collect_all(align.out.collect()) }
"""
FLOW_CONFIG = """
process.executor = 'slurm'
process.queue = 'main'
process.clusterOptions = '--account=lab'
process { withName: align { array = 2 } }
executor.pollInterval = '1s'
executor.queueStatInterval = '1s'
"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies><dependency>
<groupId>io.nextflow</groupId><artifactId>nextflow</artifactId><version>24.10.0</version>
</dependency></dependencies></project>
"""
OPENED = "lang io nio nio.file.spi net util util.regex util.concurrent.locks".split()


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("mvn"), reason="needs Java and Maven: as root, apt-get install maven")
def test_nextflow(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text(POM)
    for name, text in (("main.nf", FLOW), ("nextflow.config", FLOW_CONFIG)):
        (tmp_path / name).write_text(text)
    copy = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={tmp_path}/lib"]
    subprocess.run(copy, cwd=tmp_path, check=True)
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
    opened += [f"--add-opens=java.base/sun.nio.{name}=ALL-UNNAMED" for name in ("ch", "fs")]
    words = ["java", *opened, "-cp", f"{tmp_path}/lib/*", "nextflow.cli.Launcher", "run", "main.nf"]
    own = {"NXF_HOME": str(tmp_path / "home"), "NXF_OFFLINE": "true", "NXF_ANSI_LOG": "false"}
    run(cluster, tmp_path, tmp_path, *words, **own)
    assert (tmp_path / "out" / "all.txt").read_text() == "".join(f"aligned {x}\n" for x in "abcd")
    names = cluster.run("sacct", "-nXP", "-S", "now-1hour", "-o", "JobID,JobName,State").splitlines()
    tasks = [name for name in names if "nf-align" in name]
    assert len(tasks) == 4 and all(re.fullmatch(r"\d+_[01]\|nf-align_\(\d\)\|COMPLETED", task) for task in tasks), tasks
