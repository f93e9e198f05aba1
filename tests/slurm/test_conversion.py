"""`fairlead config import slurm`: partitions, accounts and limits become queues, and the rest is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.config import parse_config
from fairlead.slurm.conf_lines import NotRead, read_conf, read_dump
from fairlead.slurm.conversion import convert

CONF = """# slurm.conf of a lab
clusterName=lab
SlurmctldHost=head(10.0.0.1)
AuthType=auth/munge
SchedulerType=sched/backfill   # the default
PriorityType=priority/multifactor
PriorityDecayHalfLife=7-0
PriorityWeightFairshare=10000
AccountingStorageEnforce=associations,limits,qos
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=45
Include nodes.conf
PartitionName=DEFAULT State=UP MaxTime=INFINITE OverSubscribe=NO
PartitionName=cpu Nodes=ALL Default=YES \\
   DefaultTime=1:00:00 PreemptMode=OFF
partitionname=gpu NODES=g[1-2] AllowAccounts=physics qos=gpu PriorityTier=10
PartitionName=admin.tools Nodes=ALL AllowGroups=wheel,ops
"""
NODES = """NodeName=DEFAULT State=UNKNOWN
NodeName=c[01-03] CPUs=64 RealMemory=256000 Feature=ib,avx2
NodeName=g[1-2] CPUs=32 RealMemory=512000 Gres=gpu:a100:4,fpga:2 Feature=ib Weight=10
NodeName=x1 State=DOWN
"""
DUMP = """# To edit this file start with a cluster line for the new cluster
Cluster - 'lab':Fairshare=1:QOS='normal'
Parent - 'root'
User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1
Account - 'physics':Description='all of physics: theory':Organization='uni':Fairshare=30:GrpTRES=cpu=100,mem=1T,node=4
Account - 'bio':Description='bio':Organization='uni':Fairshare=10:GrpJobs=50:MaxJobs=5:MaxWallDurationPerJob=60
Parent - 'physics'
User - 'ann':DefaultAccount='physics':Fairshare=1:GrpTRES=gres/gpu=2:Coordinator='physics'
Account - 'theory':Description='t':Organization='uni'
Parent - 'theory'
User - 'carl.x':DefaultAccount='theory':Fairshare=3
Parent - 'bio'
User - 'bob':DefaultAccount='bio':MaxJobs=2
"""
QOS = """Name|Priority|GrpTRES|MaxTRESPU|MaxJobsPU|MaxWall|UsageFactor
normal|0|||||1.000000
gpu|10|gres/gpu=8|cpu=16|3|1-00:00:00|1.000000
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in (("slurm.conf", CONF), ("nodes.conf", NODES), ("lab.cfg", DUMP), ("qos.txt", QOS)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_partitions_are_queues(files: Path) -> None:
    document, warnings, agents = convert(read_conf(files / "slurm.conf"), [], {})
    [settings] = document["partitions"].values()
    assert settings == {
        "backfill": "easy",
        "preempt": "priority",
        "share_memory": "604800s",
        "preempt_grace": "45s",
        "requestors": [{"match": ".*", "queue": "root.cpu"}],
        "queues": {
            "root": {
                "cpu": {"order": "fair", "preemptible": False},
                "gpu": {"order": "fair"},
                "admin-tools": {"order": "fair", "submit": ["@wheel", "@ops"]},
            }
        },
    }
    parse_config(document)
    assert agents == [
        "c[01-03]: fairlead agent --label ib= --label avx2=",
        "g[1-2]: fairlead agent --label ib= --resource fpga=2",
        "x1: fairlead agent",
    ]
    named = [warning.split(": ", 2)[:2] for warning in warnings]
    assert named == [
        ["nodes.conf:3", "Weight=10"],
        ["nodes.conf:4", "State=DOWN"],
        ["slurm.conf:3", "SlurmctldHost=head(10.0.0.1)"],
        ["slurm.conf:4", "AuthType=auth/munge"],
        ["slurm.conf:8", "PriorityWeightFairshare=10000"],
        ["slurm.conf:15", "DefaultTime=1:00:00"],
        ["slurm.conf:17", "NODES=g[1-2]"],
        ["slurm.conf:17", "qos=gpu"],
        ["slurm.conf:17", "PriorityTier=10"],
        ["slurm.conf:17", "AllowAccounts=physics"],
        ["slurm.conf:18", "PartitionName=admin.tools"],
    ]


def test_accounts_are_queues_with_shares_and_limits(files: Path) -> None:
    arguments = ["config", "import", "slurm", str(files / "slurm.conf"), str(files / "lab.cfg")]
    done = CliRunner().invoke(app, [*arguments, "--qos", str(files / "qos.txt")])
    assert done.exit_code == 0, done.output
    document = yaml.safe_load(done.stdout)
    parse_config(document)
    settings = document["partitions"]["default"]
    physics, bio = settings["queues"]["root"]["physics"], settings["queues"]["root"]["bio"]
    assert (physics["share"], bio["share"], physics["theory"]["share"]) == (30, 10, 1)
    assert physics["limit"] == {"cpu": 100, "memory": "1048576Mi"} and bio["max_jobs"] == 50
    assert bio["users"] == {"*": {"max_jobs": 5}, "bob": {"max_jobs": 2}}
    assert physics["users"] == {"ann": {"limit": {"gpu": 2}}}
    assert (physics["submit"], physics["admin"], physics["theory"]["submit"]) == (["ann"], ["ann"], ["carl.x"])
    assert physics["gpu"]["limit"] == {"gpu": 8}
    assert physics["gpu"]["users"] == {"*": {"limit": {"cpu": 16}, "max_jobs": 3}}
    assert "gpu" not in bio and "gpu" not in physics["theory"] and "cpu" in bio
    assert settings["requestors"] == [
        {"match": "^ann$", "queue": "root.physics.cpu"},
        {"match": r"^carl\.x$", "queue": "root.physics.theory.cpu"},
        {"match": "^bob$", "queue": "root.bio.cpu"},
    ]
    for text in (
        "lab.cfg:4: AdminLevel=Administrator: `fairlead token create --user root",
        "lab.cfg:5: GrpTRES=cpu=100,mem=1T,node=4: node is no resource",
        "lab.cfg:6: MaxWallDurationPerJob=60: ",
        "lab.cfg:11: Fairshare=3: ",
        "qos.txt:3: MaxWall=1-00:00:00: ",
    ):
        assert f"warning: {text}" in done.stderr
    assert "# c[01-03]: fairlead agent --label ib= --label avx2=" in done.stdout
    (files / "fairlead.yaml").write_text(done.stdout)
    assert CliRunner().invoke(app, ["config", "check", str(files / "fairlead.yaml")]).exit_code == 0


@pytest.mark.parametrize(
    ("conf", "dump", "problem"),
    [
        ("ClusterName=x\n", "", "there is no PartitionName; is this a slurm.conf?"),
        ("hello there\n", "", "slurm.conf:1: 'hello there' is not KEY=value; is this a slurm.conf?"),
        ("NodeName=n[1-\nPartitionName=a\n", "", "slurm.conf:1: 'n[1-' is not a list of nodes"),
        ("Include slurm.conf\n", "", "files include each other more than 10 deep"),
        ("Include none.conf\n", "", "No such file"),
        ("PartitionName=a\n", "Parent - 'x'\n", "dump:1: Parent - 'x' comes before its account"),
        ("PartitionName=a\n", "what\n", "dump:1: 'what' is not a line of `sacctmgr dump`"),
        ("PartitionName=a\n", "Account - 'x':GrpTRES=cpu\n", "dump:1: GrpTRES: 'cpu' has no amount"),
    ],
)
def test_a_wrong_line_is_named(conf: str, dump: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(conf)
    (tmp_path / "dump").write_text(dump)
    with pytest.raises(NotRead) as wrong:
        convert(read_conf(tmp_path / "slurm.conf"), list(read_dump(tmp_path / "dump")) if dump else [], {})
    assert problem in str(wrong.value)
