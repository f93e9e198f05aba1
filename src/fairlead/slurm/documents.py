"""Jobs as the JSON documents of `squeue --json` and slurmrestd, and of `sacct --json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fairlead.slurm.fields import end_of, file_of, memory_of, tres_of
from fairlead.slurm.options import VERSION
from fairlead.slurm.rows import Row
from fairlead.slurm.server import uid_of
from fairlead.wire.index_spans import each_index

META = {
    "plugin": {"type": "openapi/v0.0.38", "name": "REST v0.0.38"},
    "Slurm": {"version": dict(zip(("major", "minor", "micro"), VERSION.split("."), strict=True)), "release": VERSION},
}


def encode(**document: Any) -> str:
    whole = {"meta": META, "errors": [], **document}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def number_of(row: Row) -> int:
    return int(row.number) if row.number.isdigit() else 0


def job_fields(row: Row) -> dict[str, Any]:
    """Return a job as squeue and slurmrestd show it."""
    code, signal = row.exit if row.over else (0, 0)
    return {
        "account": row.account,
        "array_job_id": number_of(row) if row.index else 0,
        "array_task_id": int(row.index) if row.index.isdigit() else None,
        "array_task_string": row.index.strip("[]").partition("%")[0] if row.index.startswith("[") else "",
        "batch_flag": bool(row.label("batch")),
        "batch_host": row.nodes[0] if row.nodes else "",
        "cluster": row.partition,
        "command": row.label("command"),
        "comment": row.label("comment"),
        "cpus": int(row.cpus),
        "cpus_per_task": int(row.label("cpus-per-task", "1")),
        "current_working_directory": row.label("chdir"),
        "dependency": row.label("dependency"),
        "end_time": int(end_of(row) or 0),
        "exit_code": signal or code << 8,
        "features": row.label("constraint"),
        "job_id": number_of(row),
        "job_state": row.state,
        "memory_per_node": int(row.resources.get("memory", 0) / 2**20) or None,
        "minimum_memory": memory_of(row),
        "name": row.job_name,
        "node_count": row.size,
        "nodes": row.hosts,
        "partition": row.partition_name,
        "priority": 2**31 + row.priority,
        "qos": row.label("qos"),
        "requeue": "slurm/no-requeue" not in row.labels,
        "restart_cnt": max(0, row.attempt - 1),
        "standard_error": file_of(row, "error"),
        "standard_input": row.label("input") or "/dev/null",
        "standard_output": file_of(row, "output"),
        "start_time": int(row.started or 0),
        "state_description": row.told,
        "state_reason": row.reason,
        "submit_time": int(row.submitted),
        "tasks": row.tasks,
        "time_limit": None if row.limit is None else int(row.limit // 60),
        "tres_req_str": tres_of(row),
        "user_id": uid_of(row.user),
        "user_name": row.user,
        "wckey": row.label("wckey"),
    }


def jobs_document(rows: Iterable[Row]) -> str:
    return encode(jobs=[job_fields(row) for row in rows])


def past_fields(row: Row) -> dict[str, Any]:
    """Return a job as sacct shows it."""
    code, signal = row.exit if row.over else (0, 0)
    status = "SIGNALED" if signal else "ERROR" if code else "SUCCESS" if row.over else "PENDING"
    return {
        "account": row.account,
        "allocation_nodes": row.size,
        "array": {
            "job_id": number_of(row) if row.index else 0,
            "task_id": next(each_index(row.indices), None) if row.index else None,
        },
        "cluster": row.partition,
        "comment": {"administrator": None, "job": row.label("comment"), "system": None},
        "exit_code": {
            "status": status,
            "return_code": code,
            **({"signal": {"signal_id": signal}} if signal else {}),
        },
        "job_id": number_of(row),
        "name": row.job_name,
        "nodes": row.hosts or "None assigned",
        "partition": row.partition_name,
        "priority": 2**31 + row.priority,
        "qos": row.label("qos"),
        "required": {"CPUs": int(row.cpus), "memory": int(row.resources.get("memory", 0) / 2**20)},
        "state": {"current": row.state, "reason": row.reason},
        "steps": [],
        "time": {
            "elapsed": int(row.elapsed),
            "eligible": int(row.submitted),
            "end": int(row.ended or 0),
            "limit": None if row.limit is None else int(row.limit // 60),
            "start": int(row.started or 0),
            "submission": int(row.submitted),
        },
        "user": row.user,
        "wckey": {"wckey": row.label("wckey"), "flags": []},
        "working_directory": row.label("chdir"),
    }
