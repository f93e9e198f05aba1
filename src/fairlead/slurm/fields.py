"""The fields of squeue, by letter (`-o`) and by name (`-O`), and how formats are read and written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from fairlead.slurm.rows import Row
from fairlead.slurm.server import uid_of
from fairlead.slurm.values import format_duration, format_size, format_time

Item = TypeVar("Item")
MIB = 2**20


class Field(NamedTuple, Generic[Item]):
    """A field of a list: its letter, its name for -O, its heading, and its value."""

    letter: str
    name: str
    heading: str
    value: Callable[[Item], str]


def null(text: str) -> str:
    return text or "(null)"


def memory_of(row: Row) -> str:
    """Return the requested memory of a node or of a CPU, in the form in which it was given."""
    if "slurm/mem-per-cpu" in row.labels:
        from fairlead.slurm.values import parse_size

        return format_size(parse_size(row.label("mem-per-cpu")))
    return format_size(row.resources.get("memory", 0) / MIB) if "memory" in row.resources else "0"


def nodelist_or_reason(row: Row) -> str:
    if row.state in ("PENDING",):
        return f"({row.reason})"
    return row.hosts if row.nodes or row.state == "COMPLETED" else f"({row.reason})" if row.over else ""


def file_of(row: Row, name: str) -> str:
    """Return the path of a file of the job, with the codes that are known."""
    path = row.label(name)
    codes = {"%j": row.id, "%J": row.id, "%A": row.number, "%a": row.index, "%x": row.job_name, "%u": row.user}
    for code, value in {**codes, "%n": "0", "%t": "0", "%N": row.nodes[0] if row.nodes else "%N"}.items():
        path = path.replace(code, value)
    return path or "/dev/null"


def end_of(row: Row) -> float | None:
    if row.ended is not None or row.started is None:
        return row.ended
    return None if row.limit is None else row.started + row.limit


def left_of(row: Row) -> str:
    if row.limit is None:
        return "UNLIMITED"
    return format_duration(row.limit - row.elapsed)


def gres_of(row: Row) -> str:
    gpus = row.resources.get("gpu")
    return row.label("gres") or (f"gres:gpu:{gpus:g}" if gpus else "N/A")


def dependency_of(row: Row) -> str:
    if row.over or not row.after:
        return "(null)"
    return ",".join(f"{text}(unfulfilled)" for text in row.label("dependency", ",".join(row.after)).split(","))


def tres_of(row: Row) -> str:
    parts = [f"cpu={row.cpus:g}"]
    if "memory" in row.resources:
        parts.append(f"mem={format_size(row.size * row.resources['memory'] / MIB)}")
    parts.append(f"node={row.size}")
    parts.append(f"billing={row.cpus:g}")
    parts += [
        f"gres/{name}={row.size * count:g}" for name, count in row.resources.items() if name not in ("cpu", "memory")
    ]
    return ",".join(parts)


def limit_of(row: Row) -> str:
    return "UNLIMITED" if row.limit is None else format_duration(row.limit)


FIELDS: tuple[Field[Row], ...] = (
    Field("a", "account", "ACCOUNT", lambda r: null(r.account)),
    Field("A", "jobid", "JOBID", lambda r: r.id.partition("_[")[0]),
    Field("b", "tres-per-node", "TRES_PER_NODE", gres_of),
    Field("B", "batchhost", "EXEC_HOST", lambda r: r.nodes[0] if r.nodes else "n/a"),
    Field("c", "mincpus", "MIN_CPUS", lambda r: r.label("cpus-per-task", "1")),
    Field("C", "numcpus", "CPUS", lambda r: f"{r.cpus:g}"),
    Field("d", "mintmpdisk", "MIN_TMP_DISK", lambda r: "0"),
    Field("D", "numnodes", "NODES", lambda r: str(r.size)),
    Field("e", "endtime", "END_TIME", lambda r: format_time(end_of(r), "N/A")),
    Field("E", "dependency", "DEPENDENCY", dependency_of),
    Field("f", "feature", "FEATURES", lambda r: null(r.label("constraint"))),
    Field("F", "arrayjobid", "ARRAY_JOB_ID", lambda r: r.number),
    Field("g", "groupname", "GROUP", lambda r: r.user),
    Field("G", "groupid", "GROUP", lambda r: str(uid_of(r.user))),
    Field("h", "oversubscribe", "OVER_SUBSCRIBE", lambda r: "NO" if "slurm/exclusive" in r.labels else "OK"),
    Field("H", "sockets", "SOCKETS_PER_NODE", lambda r: "*"),
    Field("i", "jobarrayid", "JOBID", lambda r: r.id),
    Field("I", "cores", "CORES_PER_SOCKET", lambda r: "*"),
    Field("j", "name", "NAME", lambda r: r.job_name),
    Field("J", "threads", "THREADS_PER_CORE", lambda r: "*"),
    Field("k", "comment", "COMMENT", lambda r: null(r.label("comment"))),
    Field("K", "arraytaskid", "ARRAY_TASK_ID", lambda r: r.index.strip("[]") or "N/A"),
    Field("l", "timelimit", "TIME_LIMIT", limit_of),
    Field("L", "timeleft", "TIME_LEFT", left_of),
    Field("m", "minmemory", "MIN_MEMORY", memory_of),
    Field("M", "timeused", "TIME", lambda r: format_duration(r.elapsed)),
    Field("n", "reqnodes", "REQ_NODES", lambda r: r.label("nodelist")),
    Field("N", "nodelist", "NODELIST", lambda r: r.hosts),
    Field("o", "command", "COMMAND", lambda r: null(r.label("command"))),
    Field("O", "contiguous", "CONTIGUOUS", lambda r: "0"),
    Field("p", "priority", "PRIORITY", lambda r: f"{max(0.0, min(1.0, 0.5 + r.priority / 2**32)):.14f}"),
    Field("P", "partition", "PARTITION", lambda r: r.partition_name),
    Field("q", "qos", "QOS", lambda r: null(r.label("qos"))),
    Field("Q", "prioritylong", "PRIORITY", lambda r: str(2**31 + r.priority)),
    Field("r", "reason", "REASON", lambda r: r.reason),
    Field("R", "reasonlist", "NODELIST(REASON)", nodelist_or_reason),
    Field("s", "selectjobinfo", "SELECT_JOBINFO", lambda r: ""),
    Field("S", "starttime", "START_TIME", lambda r: format_time(r.started, "N/A")),
    Field("t", "statecompact", "ST", lambda r: r.brief),
    Field("T", "state", "STATE", lambda r: r.state),
    Field("u", "username", "USER", lambda r: r.user),
    Field("U", "userid", "USER", lambda r: str(uid_of(r.user))),
    Field("v", "reservation", "RESERVATION", lambda r: "(null)"),
    Field("V", "submittime", "SUBMIT_TIME", lambda r: format_time(r.submitted)),
    Field("w", "wckey", "WCKEY", lambda r: null(r.label("wckey"))),
    Field("W", "licenses", "LICENSES", lambda r: null(r.label("licenses"))),
    Field("x", "excnodes", "EXC_NODES", lambda r: r.label("exclude")),
    Field("X", "corespec", "CORE_SPEC", lambda r: "N/A"),
    Field("y", "nice", "NICE", lambda r: r.label("nice", "0").replace("yes", "100")),
    Field("Y", "schednodes", "SCHEDNODES", lambda r: "(null)"),
    Field("z", "sct", "S:C:T", lambda r: "*:*:*"),
    Field("Z", "workdir", "WORK_DIR", lambda r: null(r.label("chdir"))),
    Field("", "accruetime", "ACCRUE_TIME", lambda r: format_time(r.submitted)),
    Field("", "admin_comment", "ADMIN_COMMENT", lambda r: null("")),
    Field("", "allocnodes", "ALLOC_NODES", lambda r: "localhost"),
    Field("", "allocsid", "ALLOC_SID", lambda r: "0"),
    Field("", "associd", "ASSOCID", lambda r: "0"),
    Field("", "batchflag", "BATCH_FLAG", lambda r: "1" if r.label("batch") else "0"),
    Field("", "boardspernode", "BOARDS_PER_NODE", lambda r: "N/A"),
    Field("", "burstbuffer", "BURST_BUFFER", lambda r: ""),
    Field("", "burstbufferstate", "BURST_BUFFER_STATE", lambda r: ""),
    Field("", "cluster", "CLUSTER", lambda r: r.partition),
    Field("", "clusterfeature", "CLUSTER_FEATURES", lambda r: null("")),
    Field("", "container", "CONTAINER", lambda r: ""),
    Field("", "cpus-per-task", "CPUS_PER_TASK", lambda r: r.label("cpus-per-task", "N/A")),
    Field("", "cpus-per-tres", "CPUS_PER_TRES", lambda r: "N/A"),
    Field("", "deadline", "DEADLINE", lambda r: "N/A"),
    Field("", "delayboot", "DELAY_BOOT", lambda r: "0:00"),
    Field("", "derivedec", "DERIVED_EC", lambda r: "0:0"),
    Field("", "eligibletime", "ELIGIBLE_TIME", lambda r: format_time(r.submitted)),
    Field("", "exit_code", "EXIT_CODE", lambda r: "{}:{}".format(*r.exit) if r.over else "0:0"),
    Field("", "gres", "TRES_PER_NODE", gres_of),
    Field("", "hetjobid", "HET_JOB_ID", lambda r: "N/A"),
    Field("", "hetjoboffset", "HET_JOB_OFFSET", lambda r: "N/A"),
    Field("", "hetjobidset", "HET_JOB_ID_SET", lambda r: "N/A"),
    Field("", "lastschedeval", "LAST_SCHED_EVAL", lambda r: format_time(r.submitted)),
    Field("", "maxcpus", "MAX_CPUS", lambda r: "0"),
    Field("", "maxnodes", "MAX_NODES", lambda r: "0"),
    Field("", "mcslabel", "MCSLABEL", lambda r: "N/A"),
    Field("", "mem-per-tres", "MEM_PER_TRES", lambda r: "N/A"),
    Field("", "mintime", "MIN_TIME", lambda r: "N/A"),
    Field("", "network", "NETWORK", lambda r: "(null)"),
    Field("", "nodes", "NODES", lambda r: str(r.size)),
    Field("", "ntpercore", "NTASKS_PER_CORE", lambda r: "N/A"),
    Field("", "ntpernode", "NTASKS_PER_NODE", lambda r: r.label("ntasks-per-node", "0")),
    Field("", "ntpersocket", "NTASKS_PER_SOCKET", lambda r: "N/A"),
    Field("", "numtasks", "TASKS", lambda r: str(r.tasks)),
    Field("", "origin", "ORIGIN", lambda r: "N/A"),
    Field("", "originraw", "ORIGIN_RAW", lambda r: "N/A"),
    Field("", "pendingtime", "PENDING_TIME", lambda r: str(int((r.started or time.time()) - r.submitted))),
    Field("", "preemptime", "PREEMPT_TIME", lambda r: "N/A"),
    Field("", "profile", "PROFILE", lambda r: "N/A"),
    Field("", "reboot", "REBOOT", lambda r: "0"),
    Field("", "reqswitch", "REQ_SWITCH", lambda r: "0"),
    Field("", "requeue", "REQUEUE", lambda r: "0" if "slurm/no-requeue" in r.labels else "1"),
    Field("", "resizetime", "RESIZE_TIME", lambda r: "N/A"),
    Field("", "restartcnt", "RESTART_COUNT", lambda r: str(max(0, r.attempt - 1))),
    Field("", "resvport", "RESV_PORTS", lambda r: "N/A"),
    Field("", "siblingsactive", "ACTIVE_SIBLINGS", lambda r: "N/A"),
    Field("", "siblingsactiveraw", "ACTIVE_SIBLINGS_RAW", lambda r: "N/A"),
    Field("", "siblingsviable", "VIABLE_SIBLINGS", lambda r: "N/A"),
    Field("", "siblingsviableraw", "VIABLE_SIBLINGS_RAW", lambda r: "N/A"),
    Field("", "stderr", "STDERR", lambda r: file_of(r, "error")),
    Field("", "stdin", "STDIN", lambda r: r.label("input") or "/dev/null"),
    Field("", "stdout", "STDOUT", lambda r: file_of(r, "output")),
    Field("", "system_comment", "SYSTEM_COMMENT", lambda r: null("")),
    Field("", "tres-alloc", "TRES_ALLOC", tres_of),
    Field("", "tres", "TRES_ALLOC", tres_of),
    Field("", "tres-bind", "TRES_BIND", lambda r: "N/A"),
    Field("", "tres-freq", "TRES_FREQ", lambda r: "N/A"),
    Field("", "tres-per-job", "TRES_PER_JOB", lambda r: f"gres:gpu:{r.label('gpus')}" if r.label("gpus") else "N/A"),
    Field("", "tres-per-socket", "TRES_PER_SOCKET", lambda r: "N/A"),
    Field("", "tres-per-task", "TRES_PER_TASK", lambda r: "N/A"),
    Field("", "wait4switch", "WAIT4SWITCH", lambda r: "0"),
)
STEPPED = {"shared": "oversubscribe", "jobname": "name", "tresalloc": "tres-alloc", "exitcode": "exit_code"}
"""Other names of fields."""


class Column(NamedTuple, Generic[Item]):
    """A field with its width, 0 for that of the value, and the text that follows it."""

    field: Field[Item]
    width: int
    right: bool
    after: str

    def text(self, value: str) -> str:
        if not self.width:
            return value + self.after
        return (
            value[: self.width].rjust(self.width) if self.right else value[: self.width].ljust(self.width)
        ) + self.after


CODE = re.compile(r"%(\.?)(\d*)(.)([^%]*)")


def read_format(text: str, fields: Sequence[Field[Item]]) -> tuple[str, list[Column[Item]]]:
    """Return the text before the first field of a format such as `%.8i %t`, and its columns."""
    by_letter = {field.letter: field for field in fields if field.letter}
    columns: list[Column[Item]] = []
    before = text.partition("%")[0]
    for dot, width, letter, after in CODE.findall(text):
        field = by_letter.get(letter)
        if field is not None:
            columns.append(Column(field, int(width or 0), bool(dot), after))
        elif columns:
            columns[-1] = columns[-1]._replace(after=columns[-1].after + after)
    return before, columns


class NoSuchField(ValueError):
    """Raised if a list of fields names an unknown one."""


def read_names(text: str, fields: Sequence[Field[Item]], width: int = 20) -> list[Column[Item]]:
    """Return the columns of a list such as `JobID:10,State:.12,Name:|`."""
    by_name = {field.name: field for field in fields}
    columns: list[Column[Item]] = []
    for entry in re.split(r",(?=[A-Za-z])|\s+(?=[A-Za-z])", text.strip().strip(",")):
        name, colon, form = entry.partition(":")
        key = name.strip().lower()
        field = by_name.get(STEPPED.get(key, key))
        if field is None:
            raise NoSuchField(name)
        match = re.fullmatch(r"(\.?)(\d*)(.*)", form, re.DOTALL)
        assert match is not None
        size = int(match[2]) if match[2] else 0 if colon and match[3] else width
        columns.append(Column(field, size, bool(match[1]), match[3]))
    return columns
