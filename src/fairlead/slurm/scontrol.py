"""`scontrol`: show and change jobs, nodes and queues."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from fairlead.slurm.fields import dependency_of, end_of, file_of, null, tres_of
from fairlead.slurm.nodes import Host, Part, read_hosts, read_parts
from fairlead.slurm.options import VERSION, Given, fail, parse
from fairlead.slurm.queues import is_called
from fairlead.slurm.rows import Row, Wanted, of_indices, parse_ids, parse_wanted, past_rows, rows_of
from fairlead.slurm.server import connect, uid_of
from fairlead.slurm.tables import SCONTROL
from fairlead.slurm.values import format_duration, format_size, format_time, parse_duration, parse_size
from fairlead.wire.hostlist import expand_hosts, fold_hosts

if TYPE_CHECKING:
    from fairlead.client import Client

NAME = "scontrol"


def main(words: list[str]) -> int:
    given, rest = parse(SCONTROL, words)
    if not rest:
        fail(NAME, "name a command: show, hold, release, requeue, update, token, ping; there is no interactive mode")
    command, *rest = rest
    function = next(
        (run for name, run in COMMANDS.items() if name.startswith(command.lower()) and len(command) > 1), None
    )
    if function is None:
        print(f"invalid keyword: {command}", file=sys.stderr)
        return 1
    return function(given, rest)


def _problem(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(1)


# -- show --------------------------------------------------------------------------------------------------------


def show(given: Given, words: list[str]) -> int:
    entity, *names = words or [""]
    for name, function in SHOWN.items():
        if entity and name.startswith(entity.lower().rstrip("s") if entity.lower() not in SHOWN else entity.lower()):
            return function(given, names)
    key, equals, value = entity.partition("=")
    if equals:
        return show(given, [key, value])
    _problem(f"invalid entity:{entity} for keyword:show ")


def hostnames(given: Given, names: list[str]) -> int:
    text = ",".join(names) or os.environ.get("SLURM_JOB_NODELIST", os.environ.get("SLURM_NODELIST", ""))
    if not text:
        _problem("No hostlist specified and SLURM_JOB_NODELIST is not set")
    try:
        print("\n".join(expand_hosts(text)))
    except ValueError:
        _problem(f"Invalid hostlist: {text}")
    return 0


def hostlist(given: Given, names: list[str]) -> int:
    print(fold_hosts(expand_hosts(",".join(names).replace("\n", ","))))
    return 0


def show_job(given: Given, names: list[str]) -> int:
    with connect(NAME, given) as client:
        rows = rows_named(client, names[0] if names else "")
    if not rows and names:
        _problem("slurm_load_jobs error: Invalid job id specified")
    if "json" in given:
        from fairlead.slurm.documents import jobs_document

        sys.stdout.write(jobs_document(rows))
        return 0
    if not rows:
        print("No jobs in the system")
    for row in rows:
        _print(job_lines(row), given)
    return 0


def rows_named(client: Client, word: str) -> list[Row]:
    """Return the rows of jobs by their ids, also of those that are over; of all jobs without ids."""
    from fairlead.client.calls import Problem
    from fairlead.wire import operations as op

    if not word:
        found = [job for page in client.pages(op.Jobs(tasks=True, limit=1000)) for job in page.jobs]
        return [row for job in sorted(found, key=lambda job: job.number) for row in rows_of(job)]
    try:
        ids = list(parse_ids(word))
    except ValueError:
        return []
    rows: list[Row] = []
    for job, indices in ids:
        try:
            view = client.send(op.Job(job=job, tasks=True))
        except Problem as problem:
            if problem.code in ("missing", "invalid"):
                continue
            raise
        found_rows = [] if view.forgotten else rows_of(view)
        if view.ended is not None or any(row.over for row in found_rows):
            past = {
                row.id: row
                for page in client.pages(op.History(id=[job], attempts=True))
                for each in page.jobs
                for row in past_rows(each)
            }
            for row in found_rows:
                old = past.get(row.id)
                if row.over and old is not None:
                    row.nodes, row.started, row.ended, row.exit_code = old.nodes, old.started, old.ended, old.exit_code
            found_rows = found_rows or list(past.values())
        rows += [row for row in found_rows if of_indices(row, indices)]
    return rows


def job_lines(row: Row) -> list[str]:
    """Return the lines of `scontrol show job`."""
    code, signal = row.exit if row.over else (0, 0)
    uid = uid_of(row.user)
    array = f" ArrayJobId={row.number} ArrayTaskId={row.index.strip('[]')}" if row.index else ""
    throttle = f" ArrayTaskThrottle={row.index.partition('%')[2].strip(']')}" if "%" in row.index else ""
    end, limit = end_of(row), "UNLIMITED" if row.limit is None else format_duration(row.limit, True)
    features = null(row.label("constraint"))
    per_node = row.resources.get("memory", 0) / 2**20
    least = (
        f"MinMemoryCPU={row.label('mem-per-cpu')}"
        if row.label("mem-per-cpu")
        else f"MinMemoryNode={format_size(per_node) if per_node else 0}"
    )
    size = row.size if row.nodes or row.over else f"{row.size}-{row.size}" if row.size > 1 else "1"
    lines = [
        f"JobId={row.id.partition('_[')[0]}{array}{throttle} JobName={row.job_name}",
        f"   UserId={row.user}({uid}) GroupId={row.user}({uid}) MCS_label=N/A",
        f"   Priority={0 if row.held else 2**31 + row.priority} Nice={row.label('nice', '0').replace('yes', '100')} "
        f"Account={null(row.account)} QOS={null(row.label('qos'))}"
        + (f" WCKey={row.label('wckey')}" if row.label("wckey") else ""),
        f"   JobState={row.state} Reason={row.reason} Dependency={dependency_of(row)}",
        f"   Requeue={int('slurm/no-requeue' not in row.labels)} Restarts={max(0, row.attempt - 1)} "
        f"BatchFlag={int(bool(row.label('batch')))} Reboot=0 ExitCode={code}:{signal}",
        f"   RunTime={format_duration(row.elapsed, True)} TimeLimit={limit} TimeMin=N/A",
        f"   SubmitTime={format_time(row.submitted)} EligibleTime={format_time(row.submitted)}",
        f"   AccrueTime={format_time(row.submitted)}",
        f"   StartTime={format_time(row.started)} EndTime={format_time(end)} Deadline=N/A",
        f"   SuspendTime=None SecsPreSuspend=0 LastSchedEval={format_time(row.started or row.submitted)} "
        "Scheduler=Main",
        f"   Partition={row.partition_name} AllocNode:Sid=localhost:0",
        f"   ReqNodeList={null(row.label('nodelist'))} ExcNodeList={null(row.label('exclude'))}",
        f"   NodeList={row.hosts}",
    ]
    lines += [f"   BatchHost={row.nodes[0]}"] if row.nodes else []
    lines += [
        f"   NumNodes={size} NumCPUs={row.cpus:g} NumTasks={row.tasks} CPUs/Task={row.label('cpus-per-task', '1')} "
        "ReqB:S:C:T=0:0:*:*",
        f"   TRES={tres_of(row)}",
        f"   Socks/Node=* NtasksPerN:B:S:C={row.label('ntasks-per-node', '0')}:0:*:* CoreSpec=*",
        f"   MinCPUsNode={row.label('cpus-per-task', '1')} {least} MinTmpDiskNode=0",
        f"   Features={features} DelayBoot=00:00:00",
        f"   OverSubscribe={'NO' if 'slurm/exclusive' in row.labels else 'OK'} Contiguous=0 "
        f"Licenses={null(row.label('licenses'))} Network=(null)",
        f"   Command={null(row.label('command'))}",
        f"   WorkDir={null(row.label('chdir'))}",
    ]
    lines += [f"   Comment={row.label('comment')} "] if row.label("comment") else []
    if row.label("output"):
        lines += [
            f"   StdErr={file_of(row, 'error')}",
            f"   StdIn={row.label('input') or '/dev/null'}",
            f"   StdOut={file_of(row, 'output')}",
        ]
    lines.append("   Power=")
    if "gpu" in row.resources:
        lines.append(f"   TresPerNode=gres:gpu:{row.resources['gpu']:g}")
    if row.told:
        lines.append(f"   Explanation={row.told}")
    return lines


def _print(lines: list[str], given: Given) -> None:
    if "oneliner" in given:
        print(" ".join(line.strip() for line in lines) + " ")
    else:
        print("\n".join(lines) + "\n")


def show_node(given: Given, names: list[str]) -> int:
    with connect(NAME, given) as client:
        hosts, parts = read_hosts(client), read_parts(client)
    wanted = expand_hosts(names[0]) if names else [host.name for host in hosts]
    by_name = {host.name: host for host in hosts}
    if "json" in given:
        from fairlead.slurm.documents import encode

        sys.stdout.write(encode(nodes=[node_fields(by_name[name], parts) for name in wanted if name in by_name]))
        return 0
    for name in wanted:
        if name not in by_name:
            print(f"Node {name} not found")
            return 1
        _print(node_lines(by_name[name], parts), given)
    return 0


def node_lines(host: Host, parts: list[Part]) -> list[str]:
    used = host.amount("cpu", True)
    state = (
        host.state
        if host.state not in ("DRAINED", "DRAINING")
        else f"{'IDLE' if host.state == 'DRAINED' else 'MIXED'}+DRAIN"
    )
    total, features = host.amount("cpu"), null(host.features)
    tres = [f"cpu={total:g}", f"mem={format_size(host.mib)}", f"billing={total:g}"]
    alloc = [f"cpu={used:g}", f"mem={format_size(host.amount('memory', True) / 2**20)}"] if used else []
    gres = [f"gres/{name}" for name in host.node.resources if name not in ("cpu", "memory")]
    tres += [f"{name}={host.amount(name.removeprefix('gres/')):g}" for name in gres]
    lines = [
        f"NodeName={host.name} Arch=x86_64 CoresPerSocket=1 ",
        f"   CPUAlloc={used:g} CPUEfctv={total:g} CPUTot={total:g} CPULoad=N/A",
        f"   AvailableFeatures={features}",
        f"   ActiveFeatures={features}",
        f"   Gres={null(host.gres)}",
        f"   NodeAddr={host.name} NodeHostName={host.name} Version={host.node.labels.get('version', VERSION)}",
        f"   RealMemory={host.mib} AllocMem={host.amount('memory', True) // 2**20:.0f} FreeMem=N/A "
        f"Sockets={total:g} Boards=1",
        f"   State={state}{'' if host.answers else '*'} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"   Partitions={','.join(part.name for part in parts)} ",
        f"   CfgTRES={','.join(tres)}",
        f"   AllocTRES={','.join(alloc)}",
    ]
    return [*lines, f"   Reason={host.node.reason}"] if host.node.reason else lines


def node_fields(host: Host, parts: list[Part]) -> dict[str, Any]:
    return {
        "name": host.name,
        "hostname": host.name,
        "state": host.state.lower(),
        "cpus": int(host.amount("cpu")),
        "alloc_cpus": int(host.amount("cpu", True)),
        "real_memory": host.mib,
        "alloc_memory": int(host.amount("memory", True) // 2**20),
        "features": host.features,
        "gres": host.gres,
        "gres_used": host.gres_used,
        "partitions": [part.name for part in parts],
        "reason": host.node.reason,
    }


def show_partition(given: Given, names: list[str]) -> int:
    with connect(NAME, given) as client:
        hosts, parts = read_hosts(client), read_parts(client)
    found = [part for part in parts if not names or is_called(part.queue.path, names[0])]
    if names and not found:
        print(f"Partition {names[0]} not found")
        return 1
    for part in found:
        _print(partition_lines(part, hosts), given)
    return 0


def partition_lines(part: Part, hosts: list[Host]) -> list[str]:
    cpus = sum(host.amount("cpu") for host in hosts)
    memory = sum(host.mib for host in hosts)
    return [
        f"PartitionName={part.name}",
        "   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
        f"   AllocNodes=ALL Default={'YES' if part.default else 'NO'} QoS=N/A",
        "   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
        "   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
        f"   Nodes={fold_hosts(host.name for host in hosts)}",
        "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
        "   OverTimeLimit=NONE PreemptMode=REQUEUE",
        f"   State={'UP' if part.up else 'DOWN'} TotalCPUs={cpus:g} TotalNodes={len(hosts)} SelectTypeParameters=NONE",
        "   JobDefaults=(null)",
        "   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"   TRES=cpu={cpus:g},mem={format_size(memory)},node={len(hosts)},billing={cpus:g}",
    ]


def show_config(given: Given, names: list[str]) -> int:
    with connect(NAME, given) as client:
        values = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AuthType": "auth/jwt",
            "ClusterName": client.partition or "fairlead",
            "JobRequeue": "1",
            "KillWait": "30 sec",
            "MaxArraySize": "10000001",
            "MaxJobCount": "1000000",
            "MinJobAge": "86400 sec",
            "PriorityType": "priority/multifactor",
            "SelectType": "select/cons_tres",
            "SLURM_VERSION": VERSION,
            "SlurmctldHost[0]": client.url,
        }
    print(time.strftime("Configuration data as of %Y-%m-%dT%H:%M:%S"))
    print(
        "".join(f"{name:<23} = {value}\n" for name, value in sorted(values.items(), key=lambda item: item[0].lower()))
    )
    print(f"Slurmctld(primary) at {values['SlurmctldHost[0]']} is UP")
    return 0


def show_step(given: Given, names: list[str]) -> int:
    from fairlead.slurm.sacct import step_entries
    from fairlead.slurm.step_lines import steps_of

    wanted = names[0] if names else ""
    job, _, step = wanted.partition(".")
    with connect(NAME, given) as client:
        rows = [row for row in rows_named(client, job) if row.state == "RUNNING"]
        found = [
            entry
            for row, steps in steps_of(client, rows)
            for entry in step_entries(row, steps)
            if entry.state == "RUNNING" and step in ("", entry.step)
        ]
    if not found and wanted:
        _problem(f"Job step {wanted} not found")
    if not found:
        print("No job steps in the system")
    for entry in found:
        cpus = f"{entry.cpus:g}"
        lines = [
            f"StepId={entry.shown_id} UserId={uid_of(entry.user)} StartTime={format_time(entry.started)} "
            "TimeLimit=UNLIMITED",
            f"   State={entry.state} Partition={entry.partition_name} NodeList={entry.hosts}",
            f"   Nodes={entry.size} CPUs={cpus} Tasks={1 if entry.step == 'batch' else entry.tasks} "
            f"Name={entry.step_name} Network=(null)",
            f"   TRES=cpu={cpus},node={entry.size}",
            "   ResvPorts=(null)",
            "   CPUFreqReq=Default ",
        ]
        _print(lines, given)
    return 0


SHOWN: dict[str, Callable[[Given, list[str]], int]] = {
    "job": show_job, "node": show_node, "partition": show_partition, "config": show_config, "hostnames": hostnames,
    "hostlist": hostlist, "hostlistsorted": hostlist, "step": show_step,
}  # fmt: skip

# -- changes -----------------------------------------------------------------------------------------------------


def _each_job(
    given: Given, words: list[str], change: Callable[[Client, Wanted], object], what: str = "", suspends: bool = True
) -> int:
    """Change jobs. `what` says what cannot be done to single tasks of an array; nothing if it can be."""
    from fairlead.client.calls import Problem

    text = ",".join([word.partition("=")[2] if word.lower().startswith("jobid=") else word for word in words])
    try:
        jobs = list(parse_wanted(text))
    except ValueError:
        _problem(f"Invalid job id specified for job {text}")
    code = 0
    with connect(NAME, given) as client:
        for wanted in jobs:
            if what and wanted.indices is not None:
                fail(NAME, f"{text}: single tasks of an array cannot be {what}; name job {wanted.job}")
            try:
                change(client, wanted)
            except Problem as problem:
                if problem.code == "unreachable":
                    raise
                why = "Invalid job id specified" if problem.code in ("missing", "invalid") else str(problem)
                why = str(problem) if problem.field not in ("", "job") else why
                print(f"{why} for job {wanted.job}", file=sys.stderr)
                if suspends:
                    print(f"slurm_suspend error: {why}", file=sys.stderr)
                code = 1
    return code


def hold(given: Given, words: list[str]) -> int:
    return _each_job(given, words, lambda client, wanted: client.hold(wanted.job), "held")


def release(given: Given, words: list[str]) -> int:
    return _each_job(given, words, lambda client, wanted: client.release(wanted.job), "released")


def requeue(given: Given, words: list[str]) -> int:
    from fairlead.wire import operations as op
    from fairlead.wire.api import TasksDocument

    def change(client: Client, wanted: Wanted) -> None:
        if wanted.indices is None:
            client.requeue(wanted.job)
        else:
            tasks = TasksDocument(indices=sorted(wanted.indices))
            client.send(op.StopTasks(job=wanted.job, action="requeue", document=tasks))

    jobs = [word for word in words if "=" not in word or word.lower().startswith("jobid=")]
    return _each_job(given, jobs, change, suspends=False)


def requeuehold(given: Given, words: list[str]) -> int:
    return max(hold(given, words), requeue(given, words))


def top(given: Given, words: list[str]) -> int:
    fail(NAME, "top is not supported; give a priority with `scontrol update JobId=N Priority=P`")


def update(given: Given, words: list[str]) -> int:
    values = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    if "nodename" in values:
        return _update_node(given, values)
    if "partitionname" in values:
        return _update_partition(given, values)
    if "jobid" in values:
        return _update_job(given, values)
    _problem('No valid entity in update command\nInput line must include "NodeName", "PartitionName" or "JobId"')


def _update_node(given: Given, values: dict[str, str]) -> int:
    actions = {
        "drain": "drain",
        "draining": "drain",
        "down": "disable",
        "fail": "drain",
        "resume": "enable",
        "undrain": "enable",
        "idle": "enable",
    }
    action: Any = actions.get(values.get("state", "").lower())
    others = values.keys() - {"nodename", "state", "reason"}
    if action is None or others:
        wrong = next(iter(others), f"state={values.get('state', '')}")
        _problem(f"Update of {wrong} is not supported; State may be drain, down or resume, with Reason")
    with connect(NAME, given) as client:
        from fairlead.wire import operations as op

        for name in expand_hosts(values["nodename"]):
            client.send(op.MoveNode(node=name, action=action, reason=values.get("reason", "").strip("'\"")))
    return 0


def _update_partition(given: Given, values: dict[str, str]) -> int:
    action: Any = {"up": "start", "down": "stop", "drain": "stop", "inactive": "stop"}.get(
        values.get("state", "").lower()
    )
    others = values.keys() - {"partitionname", "state"}
    if action is None or others:
        _problem(
            f"Update of {next(iter(others), 'State')} is not supported; State may be up or down. "
            "See `fairlead config apply`"
        )
    with connect(NAME, given) as client:
        from fairlead.wire import operations as op

        found = [part.queue.path for part in read_parts(client) if is_called(part.queue.path, values["partitionname"])]
        if not found:
            _problem("slurm_update error: Invalid partition name specified")
        client.send(op.MoveQueue(queue=found[0], action=action))
    return 0


RELABELLED = {"comment": "comment", "wckey": "wckey", "jobname": "name", "account": "account", "qos": "qos"}
"""Keys of `scontrol update` → the labels in which a job has them."""


def _update_job(given: Given, values: dict[str, str]) -> int:
    from fairlead.slurm.request import Wrong

    changes = {key: value for key, value in values.items() if key != "jobid"}
    with connect(NAME, given) as client:
        try:
            document = _changes(client, changes)
        except (ValueError, Wrong) as problem:
            _problem(f"slurm_update error: {problem}")

    def change(client: Client, wanted: Wanted) -> None:
        client.update_job(wanted.job, **document)

    return _each_job(given, [values["jobid"]], change, "changed", suspends=False)


def _changes(client: Client, changes: dict[str, str]) -> dict[str, Any]:
    """Return the changes of a job that `scontrol update` asks for."""
    from fairlead.slurm.queues import NoSuchPartition, choose_queue
    from fairlead.slurm.request import after_of

    document: dict[str, Any] = {}
    labels: dict[str, str | None] = {}
    for key, value in changes.items():
        if key in RELABELLED:
            labels[f"slurm/{RELABELLED[key]}"] = value or None
        elif key == "priority":
            document["priority"] = int(value) - (2**31 if int(value) >= 2**31 else 0)
        elif key == "nice":
            document["priority"], labels["slurm/nice"] = -int(value or 100), value or "100"
        elif key == "timelimit":
            limit = parse_duration(value)
            document["time_limit"] = "none" if limit is None else limit
        elif key == "arraytaskthrottle":
            document["throttle"] = int(value) or "none"
        elif key == "dependency":
            document["after"] = after_of(value)
            if "singleton" in value:
                raise ValueError("a job is made a singleton when it is submitted")
            labels["slurm/dependency"] = value or None
        elif key in ("numcpus", "mincpusnode"):
            document.setdefault("resources", {})["cpu"] = int(value.partition("-")[0])
        elif key == "minmemorynode":
            document.setdefault("resources", {})["memory"] = parse_size(value) * 2**20
        elif key == "gres" and value.startswith("gpu"):
            document.setdefault("resources", {})["gpu"] = int(value.rpartition(":")[2])
            labels["slurm/gres"] = value
        elif key != "partition":
            raise ValueError(f"update of {key} is not supported; see `fairlead update --help`")
    if "partition" in changes:
        try:
            document["queue"] = choose_queue(client, Given(changes))
        except NoSuchPartition:
            raise ValueError("Invalid partition name specified") from None
    return document | ({"labels": labels} if labels else {})


# -- others ------------------------------------------------------------------------------------------------------


def token(given: Given, words: list[str]) -> int:
    """Print a token as `SLURM_JWT=…`: a new one for an administrator, else that of the caller."""
    values = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    with connect(NAME, given) as client:
        from fairlead.client.calls import Problem
        from fairlead.client.endpoint import find_endpoint
        from fairlead.wire import api as wire
        from fairlead.wire import operations as op

        me = client.send(op.Whoami())
        user = values.get("username", me.user)
        lifespan = values.get("lifespan", "1800")
        seconds: Any = 315_360_000 if lifespan == "infinite" else int(lifespan)
        try:
            document = wire.TokenDocument(role="user", user=user, expires_in=seconds, note="scontrol token")
            print(f"SLURM_JWT={client.send(op.CreateToken(document=document)).secret}")
        except Problem as problem:
            if problem.status != 403:
                raise
            if values:
                fail(NAME, "only an administrator may create tokens; leave lifespan and username out for your own one")
            print(f"SLURM_JWT={find_endpoint().token}")
    return 0


def ping(given: Given, words: list[str]) -> int:
    with connect(NAME, given) as client:
        from fairlead.wire import operations as op

        client.send(op.Healthz())
        print(f"Slurmctld(primary) at {client.url} is UP")
    return 0


def version(given: Given, words: list[str]) -> int:
    print(f"slurm {VERSION}")
    return 0


def write(given: Given, words: list[str]) -> int:
    fail(NAME, "write is not supported; `fairlead show JOB --json` has the command of a job")


COMMANDS: dict[str, Callable[[Given, list[str]], int]] = {
    "show": show, "hold": hold, "uhold": hold, "release": release, "requeue": requeue, "requeuehold": requeuehold,
    "update": update, "token": token, "ping": ping, "version": version, "write": write, "top": top,
}  # fmt: skip
