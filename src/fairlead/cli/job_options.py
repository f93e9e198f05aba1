"""The options that describe a job, and the document that they make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.input_files import document_of
from fairlead.cli.option_values import check_duration, check_memory, pairs, wrong
from fairlead.cli.typer_commands import Options

if TYPE_CHECKING:
    from fairlead.client import Client

Policy = Literal["replace", "restart", "fail"]


SAME_NAMES = ("pool", "estimate", "time_limit", "tries", "on_failure", "on_loss", "output", "error")
"""Options with the name and the form of a field of a stage."""


class PodOptions(Options):
    """The options of `submit` for pods alone."""

    image: Annotated[str | None, typer.Option(help="With --engine kubernetes: container image of the pods.")] = None
    namespace: Annotated[
        str | None,
        typer.Option(help="With --engine kubernetes: namespace of the pods. By default that of the current context."),
    ] = None
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            help="With --engine kubernetes: kubeconfig file. By default the variable KUBECONFIG, or ~/.kube/config."
        ),
    ] = None


class JobOptions(Options):
    """A job with one stage, as `submit` and `run` take it."""

    command: Annotated[
        list[str] | None,
        typer.Argument(help="The program and its arguments. Options of Fairlead come before it.", metavar="COMMAND…"),
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of the job. By default the name of the program.")] = None
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            help="Queue of the job, such as root.ml. By default the one that the configuration gives to its user.",
            autocompletion=completion.queues,
        ),
    ] = None
    array: Annotated[
        int | None,
        typer.Option(
            "--array",
            help="Run N equal tasks, each as soon as there is capacity. FAIRLEAD_INDEX is the number of the task, "
            "from 0.",
            metavar="N",
            min=1,
        ),
    ] = None
    gang: Annotated[
        int | None, typer.Option("--gang", help="Run N tasks that start together, or not at all.", metavar="N", min=1)
    ] = None
    cpu: Annotated[str | None, typer.Option(help="CPUs of each task, such as 2 or 500m.", show_default="1")] = None
    memory: Annotated[str | None, typer.Option(help="Memory of each task, such as 512Mi or 8Gi.")] = None
    gpu: Annotated[str | None, typer.Option(help="GPUs of each task: 2, or a fraction of one, such as 0.5.")] = None
    resource: Annotated[
        list[str] | None, typer.Option(help="Another resource of each task, as name=amount; may be repeated.")
    ] = None
    priority: Annotated[
        int | None,
        typer.Option(
            help="Jobs with a higher number start first, in queues with the order `priority`. The most that you may "
            "give is your max_priority in the queue, 0 unless an administrator has set it."
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="Id of a job that must succeed before this one starts; may be repeated.",
            autocompletion=completion.live_jobs,
        ),
    ] = None
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="Environment variable, as NAME=value; may be repeated.")
    ] = None
    secret: Annotated[
        list[str] | None,
        typer.Option(
            help="Pass a secret in an environment variable, as VARIABLE=secret; may be repeated. `fairlead secret set` "
            "stores secrets."
        ),
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            help="Label of the job, as key=value; may be repeated.",
            autocompletion=completion.job_labels,
        ),
    ] = None
    selector: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only on nodes with this label, as key=value; may be repeated.",
            autocompletion=completion.node_labels,
        ),
    ] = None
    toleration: Annotated[
        list[str] | None,
        typer.Option(help="Run also on nodes with this taint, written as `fairlead node show` does; may be repeated."),
    ] = None
    pool: Annotated[
        str | None, typer.Option(help="Run only on nodes of this pool.", autocompletion=completion.pools)
    ] = None
    estimate: Annotated[
        str | None,
        typer.Option(
            help="Expected run time of a task, such as 30min. With an estimate, a job may start earlier, in a gap "
            "before another job. A task that runs longer is not stopped."
        ),
    ] = None
    time_limit: Annotated[
        str | None, typer.Option(help="Stop a task that runs longer than this, such as 2h or 02:00:00.")
    ] = None
    tries: Annotated[
        int | None, typer.Option(help="Run a task up to this many times, until it succeeds.", min=1, show_default="1")
    ] = None
    on_failure: Annotated[
        Policy | None,
        typer.Option(
            help="When a task fails and has tries left: replace it, restart its gang as one try, or fail the job.",
            show_default="restart for a gang, else replace",
        ),
    ] = None
    on_loss: Annotated[
        Policy | None,
        typer.Option(
            help="When a task is lost with its node: replace it, restart its gang, or fail the job. This uses no try.",
            show_default="restart for a gang, else replace",
        ),
    ] = None
    directory: Annotated[
        str | None, typer.Option(help="Working directory. By default this one, if the server is on this machine.")
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Write standard output, and standard error unless --error is given, to this file on the node instead "
            "of a log. %j is the number of the job, %s the stage, %a the index of the task, %r the attempt.",
            metavar="PATTERN",
        ),
    ] = None
    error: Annotated[
        str | None,
        typer.Option("--error", help="Write standard error to this file; named like --output.", metavar="PATTERN"),
    ] = None
    result: Annotated[
        list[str] | None,
        typer.Option(
            "--result",
            help="Collect these files when a task ends by itself, such as 'out/*.csv' or 'model/**' below its working "
            "directory; may be repeated. %a is the index of the task, and so on as for --output. `fairlead results` "
            "fetches them.",
            metavar="PATTERN",
        ),
    ] = None
    shell: Annotated[
        bool, typer.Option("--shell", help="Run the words of COMMAND as one line of the shell, with /bin/sh -c.")
    ] = False

    def read(self, file: Path) -> dict[str, Any]:
        """Return the job in a file. Refuse options beside it."""
        for name, value in vars(self).items():
            if value not in (None, [], False):
                hint = "COMMAND" if name == "command" else _option(name)
                raise wrong(hint, "it would be ignored beside --file; write it in the file")
        document = document_of(file, "a job is written as key: value pairs", may_be_empty=False)
        if "stages" not in document and "command" in document:
            # A job with one stage may be written without a list of stages.
            stage_keys = _stage_keys()
            stage = {key: document.pop(key) for key in list(document) if key in stage_keys}
            document["stages"] = [stage]
        return document

    def document(self, client: Client, or_file: str = ", or --file") -> dict[str, Any]:
        """Return the job that the options describe."""
        if not self.command:
            raise wrong("COMMAND", f"give a program and its arguments{or_file}")
        if self.array and self.gang:
            raise wrong("--gang", "the tasks start one by one or together; drop --array or --gang")
        for name in ("estimate", "time_limit"):
            check_duration(getattr(self, name), _option(name))
        directory = self.directory
        if directory is None and any(host in client.url for host in ("//127.", "//localhost", "//[::1]")):
            directory = os.getcwd()
        stage = {
            "command": ["/bin/sh", "-c", " ".join(self.command)] if self.shell else self.command,
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


def _stage_keys() -> set[str]:
    from fairlead.wire.api import StageDocument

    return set(StageDocument.__struct_fields__) - {"name"}


def _name_of(program: str) -> str:
    """Return a job name made from the name of its program, without invalid characters."""
    words = program.split(maxsplit=1)
    last = Path(words[0]).name if words else ""
    kept = "".join(char for char in last if (char.isascii() and char.isalnum()) or char in "._-")
    return kept.lstrip("._-")[:63].replace("..", ".") or "job"
