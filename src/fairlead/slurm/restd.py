"""`fairlead slurm restd`: the paths of slurmrestd that Airflow and Prefect use, translated to requests of the client.

It keeps nothing: the token of a request, which `scontrol token` prints, is the token of Fairlead that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.slurm.documents import META, job_fields
from fairlead.slurm.options import Given
from fairlead.slurm.rows import Row, rows_of
from fairlead.slurm.server import caller

if TYPE_CHECKING:
    from fairlead.client import Client

LARGEST = 16 << 20
"""Bytes of a request."""
OPTIONS = {
    "name": "job-name", "partition": "partition", "account": "account", "qos": "qos", "tasks": "ntasks",
    "cpus_per_task": "cpus-per-task", "tasks_per_node": "ntasks-per-node", "nodes": "nodes", "minimum_nodes": "nodes",
    "memory_per_node": "mem", "memory_per_cpu": "mem-per-cpu", "time_limit": "time", "comment": "comment",
    "standard_output": "output", "standard_error": "error", "standard_input": "input", "constraints": "constraint",
    "current_working_directory": "chdir", "dependency": "dependency", "array": "array", "wckey": "wckey",
    "priority": "priority", "nice": "nice", "tres_per_node": "gres", "required_nodes": "nodelist",
    "excluded_nodes": "exclude", "hold": "hold", "requeue": "requeue", "mail_user": "mail-user",
}  # fmt: skip
"""Keys of a job → options of sbatch."""
PATH = re.compile(r"/slurm/v[\d.]+/(ping|jobs|job/submit|job/(\d+(?:_\d+)?))/?")


class Refused(Exception):
    """Raised for a request that cannot be served, with its status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def serve(host: str, port: int, url: str, told: Callable[[int], None]) -> None:
    """Serve until the process is interrupted. `told` is called with the port, and `url` is that of the server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, format: str, *values: Any) -> None:
            """Write no line for each request."""

        def do_GET(self) -> None:
            self._answer()

        do_POST = do_DELETE = do_GET

        def _answer(self) -> None:
            from fairlead.client.calls import Problem

            size = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(size) if size <= LARGEST else b""
            self.close_connection = size > LARGEST
            token = self.headers.get("x-slurm-user-token") or ""
            token = token or self.headers.get("authorization", "").removeprefix("Bearer ")
            try:
                status, found = 200, answer(url, token, self.command, self.path.partition("?")[0], body)
            except (Refused, Problem) as problem:
                status = problem.status or 500
                found = {"errors": [{"error": str(problem), "error_number": status, "description": str(problem)}]}
            content = msgspec.json.encode({"meta": META, "errors": [], "warnings": [], **found})
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer((host, port), Handler) as server:
        told(server.server_address[1])
        server.serve_forever()


def answer(url: str, token: str, method: str, path: str, body: bytes) -> dict[str, Any]:
    """Return the answer to a request. Raise `Refused` or `Problem` if there is none."""
    from fairlead.client.sync import Client

    if (method, path) == ("GET", "/openapi/v3"):
        return {"openapi": "3.0.3", "info": {"title": "Slurm REST API", "version": "v0.0.40"}, "paths": {}}
    match = PATH.fullmatch(path)
    if match is None:
        raise Refused(404, f"{path} is not served; there are /slurm/V/ping, jobs, job/submit and job/ID")
    if not token:
        raise Refused(401, "send X-SLURM-USER-TOKEN; `scontrol token` prints one")
    with Client(url, token) as client:
        if match[1] == "ping" and method == "GET":
            more = {"pinged": "UP", "responding": True, "latency": 0, "mode": "primary", "primary": True}
            return {"pings": [{"hostname": client.url, **more}]}
        if match[1] == "job/submit" and method == "POST":
            return _submit(client, body)
        if match[1] == "jobs" and method == "GET":
            return _listed(_jobs(client))
        if match[2] and method == "GET":
            return _listed(_job(client, match[2]))
        if match[2] and method == "DELETE":
            job, _, index = match[2].partition("_")
            client.stop_tasks(job, "kill", [int(index)]) if index else client.kill(job)
            return {"status": []}
    raise Refused(405, f"{method} is not served for {path}")


def _listed(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"jobs": jobs, "last_update": _number(int(time())), "last_backfill": _number(0)}


def _jobs(client: Client) -> list[dict[str, Any]]:
    from fairlead.wire import operations as op

    pages = client.pages(op.Jobs(tasks=True, limit=1000))
    return [_fields(row) for page in pages for job in page.jobs for row in rows_of(job)]


def _job(client: Client, wanted: str) -> list[dict[str, Any]]:
    from fairlead.slurm.scontrol import rows_named

    found = rows_named(client, wanted)
    if not found:
        raise Refused(404, f"job {wanted}: Invalid job id specified")
    return [_fields(row) for row in found]


def _fields(row: Row) -> dict[str, Any]:
    """Return a job in the form of version 0.0.40 and later: states are lists, and numbers say whether they are set."""
    code, signal = row.exit if row.over else (0, 0)
    status = "SIGNALED" if signal else "ERROR" if code else "SUCCESS" if row.over else "PENDING"
    fields = job_fields(row)
    numbers = ("array_job_id", "array_task_id", "cpus", "cpus_per_task", "end_time", "memory_per_node", "node_count",
               "priority", "start_time", "submit_time", "tasks", "time_limit")  # fmt: skip
    fields |= {name: _number(fields[name]) for name in numbers}
    exit_code = {"status": [status], "return_code": _number(code), "signal": {"id": _number(signal), "name": ""}}
    return fields | {"job_state": [row.state], "exit_code": exit_code, "features": fields["features"]}


def _number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _submit(client: Client, body: bytes) -> dict[str, Any]:
    from fairlead.slurm.queues import NoSuchPartition
    from fairlead.slurm.request import Wrong
    from fairlead.slurm.sbatch import document_of_script
    from fairlead.wire import operations as op

    try:
        request = msgspec.json.decode(body)
        described = request.get("job") or {}
        script = described.pop("script", None) or request.get("script") or ""
    except (msgspec.DecodeError, AttributeError) as problem:
        raise Refused(400, f"the body is not a job: {problem}") from None
    environment = described.pop("environment", [])
    if not isinstance(environment, Mapping):
        environment = dict(text.partition("=")[::2] for text in environment)
    if not script.startswith("#!"):
        raise Refused(400, "script: it has to begin with #! and the path of an interpreter")
    if not described.get("current_working_directory"):
        raise Refused(400, "current_working_directory: missing; it is a folder of the nodes")
    given = options_of(described)
    try:
        document: Any = document_of_script(client, given, script, environment, caller(client))
    except NoSuchPartition as problem:
        raise Refused(400, f"partition: Invalid partition name specified: {problem}") from None
    except Wrong as problem:
        raise Refused(400, str(problem)) from None
    submitted = client.send(op.Submit(document=document))
    number = int(submitted.job) if submitted.job.isdigit() else 0
    result = {"job_id": number, "step_id": "batch", "job_submit_user_msg": submitted.warning or ""}
    return {**result, "result": {**result, "error_code": 0, "error": ""}}


def options_of(described: Mapping[str, Any]) -> Given:
    """Return the description of a job as options of sbatch. Raise `Refused` for a key that none stands for."""
    given = Given()
    for key, raw in described.items():
        value = raw
        if isinstance(value, Mapping):  # {"set": true, "number": 5}
            value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
        if value is None or value is False or value == "":
            continue
        if key not in OPTIONS:
            raise Refused(400, f"job.{key} is not supported; there are {', '.join(OPTIONS)}")
        text = ",".join(map(str, value)) if isinstance(value, list) else "" if value is True else str(value)
        given[OPTIONS[key]] = text.removeprefix("gres/").removeprefix("gres:") if key == "tres_per_node" else text
    return given
