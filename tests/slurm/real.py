"""A real Slurm of this machine, with private daemons in a folder of its own, to compare our commands with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
CONF = """ClusterName=peer
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={d}/munge.sock
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd-%n.pid
SlurmdSpoolDir={d}/spool-%n
StateSaveLocation={d}/state
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd-%n.log
SlurmctldDebug=error
SlurmdDebug=error
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
KillWait=2
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=2
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory={memory} \\
  State=UNKNOWN Feature=blue
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=ml Nodes=ALL MaxTime=INFINITE State=UP
"""


def is_here() -> bool:
    """True if the daemons of Slurm are installed, and this user may run them."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return os.geteuid() == 0 and all(shutil.which(name, path=path) for name in NEEDED)


class RealSlurm:
    """Daemons of a Slurm with some nodes on 127.0.0.1. `environment` makes the real commands talk to them."""

    def __init__(self, folder: Path, nodes: int = 3, cpus: int = 4, memory: int = 4096, port: int = 26_717) -> None:
        folder.chmod(0o755)
        (folder / "state").mkdir()
        conf = folder / "slurm.conf"
        conf.write_text(
            CONF.format(
                d=folder,
                host=socket.gethostname().split(".")[0],
                port=port,
                user="root",
                nodes=nodes,
                first=port + 10,
                last=port + 9 + nodes,
                cpus=cpus,
                memory=memory,
            )
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        self.environment = {**kept, "SLURM_CONF": str(conf), "PATH": f"{kept['PATH']}:/usr/sbin"}
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            names = {"-S": "munge.sock", "--key-file": "munge.key", "--pid-file": "munged.pid"}
            names |= {"--seed-file": "munged.seed", "--log-file": "munged.log"}
            options = [word for option, name in names.items() for word in (option, str(folder / name))]
            self._start("munged", "-F", "--force", *options)
            while not (folder / "munge.sock").exists():
                time.sleep(0.01)
            self._start("slurmctld", "-D", "-f", str(conf))
            for number in range(1, nodes + 1):
                self._start("slurmd", "-D", "-N", f"n{number}", "-f", str(conf))
            deadline = time.monotonic() + 60
            while self.run("sinfo", "-h", "-N", "-o", "%t").stdout.split() != ["idle"] * nodes * 2:
                assert time.monotonic() < deadline, self.run("sinfo", "-N").stdout
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise

    def _start(self, *command: str) -> None:
        quiet = subprocess.DEVNULL
        self._processes.append(subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet))

    def run(self, *command: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self.run("scancel", "-u", "root")
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
