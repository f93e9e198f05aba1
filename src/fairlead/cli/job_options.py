"""The options that describe a job, and the document that they make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairlead.cli import completion
from fairlead.cli.input_files import document_of
from fairlead.cli.option_values import check_duration, check_memory, pairs, wrong
from fairlead.cli.typer_commands import Options, argument, option

if TYPE_CHECKING:
    from fairlead.client import Client

Policy = Literal["replace", "restart", "fail"]

SAME_NAMES = ("pool", "estimate", "time_limit", "tries", "on_failure", "on_loss", "output", "error")
"""Options that a job document has under the same name, as fields of its stage."""


class PodOptions(Options):
    """The options of `submit` that only pods have."""

    image: str | None = option("With --engine kubernetes: container image of the pods.")
    namespace: str | None = option(
        "With --engine kubernetes: namespace of the pods. By default the one of the current context."
    )
    kubeconfig: str | None = option(
        "With --engine kubernetes: kubeconfig file. By default the variable KUBECONFIG, or ~/.kube/config."
    )


class JobOptions(Options):
    """The options of `submit` and `run` that describe a job with one stage."""

    command: list[str] | None = argument(
        "The program and its arguments. Options of Fairlead come before the program.", metavar="COMMAND…"
    )
    name: str | None = option("Name of the job. By default the name of the program.")
    queue: str | None = option(
        "Queue of the job, such as root.ml. By default the queue that the configuration chooses for its user.",
        "-q",
        autocompletion=completion.queues,
    )
    array: int | None = option(
        "Run N equal tasks, each as soon as there is capacity. In each task, the variable FAIRLEAD_INDEX is its index, "
        "from 0.",
        metavar="N",
        min=1,
    )
    gang: int | None = option("Run N tasks that start together, or not at all.", metavar="N", min=1)
    cpu: str | None = option("CPUs of each task, such as 2 or 500m.", show_default="1")
    memory: str | None = option("Memory of each task, such as 512Mi or 8Gi.")
    gpu: str | None = option("GPUs of each task: 2, or a fraction of one, such as 0.5.")
    resource: list[str] | None = option("Another resource of each task, as name=amount; may be repeated.")
    priority: int | None = option(
        "In a queue with the order `priority`, jobs with a higher number start first. You may give at most your "
        "max_priority in the queue, which is 0 unless an administrator has set it."
    )
    after: list[str] | None = option(
        "Id of a job that must succeed before this job starts; may be repeated.", autocompletion=completion.live_jobs
    )
    env: list[str] | None = option("Environment variable, as NAME=value; may be repeated.", "-e")
    secret: list[str] | None = option(
        "Pass a secret of `fairlead secret set` to the tasks in an environment variable, as VARIABLE=secret; may be "
        "repeated."
    )
    label: list[str] | None = option(
        "Label of the job, as key=value; may be repeated.", "-l", autocompletion=completion.job_labels
    )
    selector: list[str] | None = option(
        "Run only on nodes with this label, as key=value; may be repeated.", autocompletion=completion.node_labels
    )
    toleration: list[str] | None = option(
        "Run also on nodes with this taint, written as `fairlead node show` prints it; may be repeated."
    )
    pool: str | None = option("Run only on nodes of this pool.", autocompletion=completion.pools)
    estimate: str | None = option(
        "Expected run time of a task, such as 30min. It lets the scheduler start the job in a gap before a larger job. "
        "A task that runs longer is not stopped."
    )
    time_limit: str | None = option("Stop a task that runs longer than this, such as 2h or 02:00:00.")
    tries: int | None = option("Run a task up to this many times, until it succeeds.", min=1, show_default="1")
    on_failure: Policy | None = option(
        "What to do when a task fails and has tries left: replace the task, restart its whole gang, or fail the job. A "
        "restart is one try.",
        show_default="restart for a gang, else replace",
    )
    on_loss: Policy | None = option(
        "What to do when a task is lost with its node: replace the task, restart its whole gang, or fail the job. This "
        "uses no try.",
        show_default="restart for a gang, else replace",
    )
    directory: str | None = option(
        "Working directory of the tasks. By default the current directory, if the server is on this machine."
    )
    output: str | None = option(
        "Write standard output to this file on the node instead of a log, and standard error too unless --error is "
        "given. %j is the number of the job, %s the stage, %a the index of the task, %r the attempt.",
        "-o",
        metavar="PATTERN",
    )
    error: str | None = option(
        "Write standard error to this file. The name may have %j, %s, %a and %r as in --output.", metavar="PATTERN"
    )
    result: list[str] | None = option(
        "Collect these files when a task ends by itself, such as 'out/*.csv' or 'model/**' in its working directory; "
        "may be repeated. The name may have %j, %s, %a and %r as in --output. `fairlead results` fetches the files.",
        metavar="PATTERN",
    )
    shell: bool = option("Run the words of COMMAND as one line in a shell, with /bin/sh -c.")

    @property
    def whole_command(self) -> list[str] | None:
        """The command, with --shell as a line for /bin/sh."""
        return ["/bin/sh", "-c", " ".join(self.command)] if self.shell and self.command else self.command

    def read(self, file: Path) -> dict[str, Any]:
        """Return the job in a file. Refuse options that describe a job too."""
        for name, value in vars(self).items():
            if value not in (None, [], False):
                hint = "COMMAND" if name == "command" else _option(name)
                raise wrong(hint, "--file describes the whole job; write this in the file instead")
        document = document_of(file, "a job is written as key: value pairs", may_be_empty=False)
        if "stages" not in document and "command" in document:
            # A job with one stage may be written without a list of stages.
            from fairlead.wire.api import StageDocument

            stage_keys = set(StageDocument.__struct_fields__) - {"name"}
            document["stages"] = [{key: document.pop(key) for key in list(document) if key in stage_keys}]
        return document

    def document(self, client: Client, or_file: str = ", or --file") -> dict[str, Any]:
        """Return the job that the options describe."""
        if not self.command:
            raise wrong("COMMAND", f"give a program and its arguments{or_file}")
        if self.array and self.gang:
            raise wrong(
                "--gang", "tasks of an array start one by one, those of a gang together; drop --array or --gang"
            )
        for name in ("estimate", "time_limit"):
            check_duration(getattr(self, name), _option(name))
        directory = self.directory
        if directory is None and any(host in client.url for host in ("//127.", "//localhost", "//[::1]")):
            directory = os.getcwd()
        stage = {
            "command": self.whole_command,
            "array": self.array,
            "count": self.gang,
            "resources": self._resources(),
            "environment": pairs(self.env, "--env") or None,
            "secrets": pairs(self.secret, "--secret") or None,
            "selectors": pairs(self.selector, "--selector") or None,
            "tolerations": self.toleration,
            "results": self.result,
            "directory": directory,
            **{name: getattr(self, name) for name in SAME_NAMES},
        }
        job = {
            "name": self.name or _name_of(self.command[0]),
            "queue": self.queue,
            "priority": self.priority,
            "after": self.after,
            "labels": pairs(self.label, "--label") or None,
            "stages": [_given(stage)],
        }
        return _given(job)

    def _resources(self) -> dict[str, str]:
        resources = pairs(self.resource, "--resource")
        for name, amount in (("cpu", self.cpu), ("memory", self.memory), ("gpu", self.gpu)):
            if amount is not None:
                if name in resources:
                    raise wrong("--resource", f"{name} is given twice; drop it, or --{name}")
                resources[name] = amount
        check_memory(resources.get("memory", ""), "--resource" if self.memory is None else "--memory")
        resources.setdefault("cpu", "1")
        return resources


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _name_of(program: str) -> str:
    """Return a job name made from the name of its program, without invalid characters."""
    words = program.split(maxsplit=1)
    last = Path(words[0]).name if words else ""
    kept = "".join(char for char in last if (char.isascii() and char.isalnum()) or char in "._-")
    return kept.lstrip("._-")[:63].replace("..", ".") or "job"
