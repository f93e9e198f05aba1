"""`sbatch`: submit a script."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from fairlead.slurm.options import Given, error, fail, from_environment, parse
from fairlead.slurm.server import connect, user_name
from fairlead.slurm.tables import SBATCH
from fairlead.slurm.values import format_time

if TYPE_CHECKING:
    from fairlead.client import Client

NAME = "sbatch"
VARIABLES = {
    "chdir": "SBATCH_CHDIR", "time": "SBATCH_TIMELIMIT", "array": "SBATCH_ARRAY_INX", "job-name": "SBATCH_JOB_NAME",
}  # fmt: skip
MARK = "#SBATCH"


def main(words: list[str]) -> int:
    given, rest = parse(SBATCH, words)
    others: list[Given] = []
    while rest[:1] == [":"]:
        other, rest = parse(SBATCH, rest[1:])
        others.append(other)
    name, script = _script(given, rest)
    parts = _parts(script)
    own = Given({**from_environment(SBATCH, os.environ, "SBATCH", VARIABLES), **given})
    parts = [Given({**part, **more}) for part, more in zip_longest(parts, [own, *others], fillvalue=Given())]
    first = parts[0]
    first.setdefault("job-name", name)
    with connect(NAME, first) as client:
        return _submit(client, parts, script, rest[1:] if "wrap" not in first else [])


def _script(given: Given, rest: list[str]) -> tuple[str, str]:
    """Return the name of the job and the text of the script."""
    if "wrap" in given:
        if rest:
            fail(NAME, "Script arguments not permitted with --wrap option")
        return "wrap", f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given['wrap']}\n"
    path = rest[0] if rest else ""
    try:
        if path and path not in ("-", "/dev/stdin"):
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                script = file.read()
        else:
            script = sys.stdin.read()
    except OSError:
        fail(NAME, f"Unable to open file {path}")
    if not script.strip():
        fail(NAME, "Batch script is empty!")
    if "\0" in script:
        fail(NAME, "The Slurm controller does not allow scripts that contain a NULL character '\\0'.")
    first = script.split("\n", 1)[0]
    if first.endswith("\r"):
        fail(
            NAME,
            "Batch script contains DOS line breaks (\\r\\n)\n"
            "sbatch: error: instead of expected UNIX line breaks (\\n).",
        )
    if not script.startswith("#!"):
        fail(
            NAME,
            "This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh",
        )
    return os.path.basename(path) if path not in ("", "-", "/dev/stdin") else "sbatch", script


def _parts(script: str) -> list[Given]:
    """Return the options of the #SBATCH lines, for each part of a heterogeneous job."""
    parts = [Given()]
    for line in script.splitlines():
        if line.startswith(MARK) and line[len(MARK) : len(MARK) + 1] in (" ", "\t"):
            try:
                words = shlex.split(line.removeprefix(MARK), comments=True)
            except ValueError as problem:
                fail(NAME, f"{line}: {problem}; close the quote")
            if words and words[0] in ("hetjob", "packjob"):
                parts.append(Given())
                continue
            found, rest = parse(SBATCH, words)
            if rest:
                error(NAME, f"{line}: {rest[0]} is not an option")
            parts[-1].update(found)
        elif line.startswith("#FAIRLEAD"):
            print(f"{NAME}: warning: #FAIRLEAD lines are ignored; `fairlead submit` reads them", file=sys.stderr)
        elif line.strip() and not line.startswith("#"):
            break
    return parts


def _submit(client: Client, parts: list[Given], script: str, arguments: list[str]) -> int:
    from fairlead.client.calls import Problem
    from fairlead.slurm.queues import NoSuchPartition
    from fairlead.slurm.request import Wrong, passed_on
    from fairlead.wire import operations as op

    first = parts[0]
    try:
        document: Any = document_of_script(
            client, first, script, passed_on(first, os.environ), user_name(), parts, arguments
        )
        if "test-only" in first:
            return _test(client, document)
        submitted = client.send(op.Submit(document=document))
    except NoSuchPartition as problem:
        error(NAME, f"invalid partition specified: {problem}")
        fail(NAME, "Batch job submission failed: Invalid partition name specified")
    except Wrong as problem:
        usage = str(problem).startswith("Invalid --") or "valid node count" in str(problem)
        fail(NAME, str(problem), 255 if usage else 1)
    except Problem as problem:
        if problem.code == "unreachable":
            raise
        fail(NAME, f"Batch job submission failed: {problem}")
    if submitted.warning and "quiet" not in first:
        print(f"{NAME}: warning: job {submitted.job}: {submitted.warning}", file=sys.stderr)
    cluster = f";{client.partition}" if client.partition else ""
    if "parsable" in first:
        print(f"{submitted.job}{cluster}", flush=True)
    elif "quiet" not in first:
        on = f" on cluster {client.partition}" if client.partition else ""
        print(f"Submitted batch job {submitted.job}{on}", flush=True)
    return _wait(client, submitted.job) if "wait" in first else 0


def document_of_script(
    client: Client,
    first: Given,
    script: str,
    environment: Mapping[str, str],
    user: str,
    parts: Sequence[Given] = (),
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the document of a job that runs a script. `parts` has the options of each part, `first` of the first."""
    from fairlead.slurm.request import Cluster, document_of

    first.setdefault("job-name", "sbatch")
    command = _command(first, script, list(arguments), user)
    document = document_of(list(parts) or [first], Cluster(client), command, first["job-name"], environment, user)
    document["labels"] |= _shown(first, document)
    return document


def _command(given: Given, script: str, arguments: list[str], user: str) -> list[str]:
    from fairlead.slurm.request import pattern_code, script_parts

    with open(os.path.join(os.path.dirname(__file__), "start.sh")) as file:  # importlib.resources takes 15 ms to load
        start = file.read()
    words = script_parts(script)
    mode = ">>" if given.get("open-mode", "t").lower().startswith("a") else ">"
    default = "slurm-%A_%a.out" if "array" in given else "slurm-%j.out"
    name = given["job-name"]
    files = [given.get("input") or "/dev/null", given.get("output") or default, given.get("error", "")]
    # Programs such as submitit make a folder with the id of a job after its submission, when it may run already.
    folders = [os.path.dirname(path) for path in files[1:] if "%" in os.path.dirname(path)]
    code = "".join([f"mkdir -p {pattern_code(folder, name, user)}; " for folder in folders])
    code += f"exec <{pattern_code(files[0], name, user)} {mode}{pattern_code(files[1], name, user)}"
    code += f" 2{mode}{pattern_code(files[2], name, user)}" if files[2] else " 2>&1"
    return ["/bin/sh", "-c", start, "slurm_script", code, str(len(words)), *words, *arguments]


def _shown(given: Given, document: Mapping[str, Any]) -> dict[str, str]:
    """Return labels with the files of a job, from which `scontrol show job` tells where they are."""
    directory = document["stages"][0]["directory"]
    output = given.get("output") or ("slurm-%A_%a.out" if "array" in given else "slurm-%j.out")
    paths = {"output": output, "error": given.get("error") or output}
    return {f"slurm/{name}": os.path.join(directory, path)[:1000] for name, path in paths.items()} | {
        "slurm/batch": "1"
    }


def _test(client: Client, document: Mapping[str, Any]) -> int:
    tried = client.dry_run(document=document, eta=True)
    if tried.never:
        fail(NAME, f"allocation failure: Requested node configuration is not available ({tried.never})")
    from time import time

    eta = None if tried.eta is None else tried.eta.start or tried.eta.not_before
    at = time() if tried.starts else eta
    nodes = ",".join(dict.fromkeys(placed.node for placed in tried.placements)) or "(unknown)"
    cpus = sum(stage.get("count", 1) * stage["resources"]["cpu"] for stage in document["stages"])
    queue = tried.queue.removeprefix("root.")
    when = format_time(at, "an unknown time")
    print(
        f"{NAME}: Job 0 to start at {when} using {cpus:g} processors on nodes {nodes} in partition {queue}",
        file=sys.stderr,
    )
    return 0


def _wait(client: Client, job: str) -> int:
    view = client.wait(job)
    if view.state == "succeeded":
        return 0
    codes = [attempt.exit_code for attempt in client.attempts(job).attempts if attempt.exit_code]
    return max([code & 255 for code in codes], default=1) or 1
