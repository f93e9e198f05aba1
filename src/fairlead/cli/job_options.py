"""The options that describe a job, and the document that they make."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from fairlead.cli import completion
from fairlead.cli.input_files import document_of, need_file
from fairlead.cli.job_environment import environment_of
from fairlead.cli.option_values import amounts_of, check_duration, pairs, seconds_until, wrong
from fairlead.cli.typer_commands import Options, argument, option

if TYPE_CHECKING:
    import msgspec

    from fairlead.client import Client

DIGEST = re.compile("[0-9a-f]{64}")
Policy = Literal["replace", "restart", "fail"]

OF_STAGE = (
    "min", "throttle", "near", "scaling", "pool", "estimate", "time_limit", "signal", "grace", "tries", "on_failure",
    "on_loss", "directory", "output", "error",
)  # fmt: skip
"""Options that a stage of a document has under the same name."""
OF_JOB = ("name", "queue", "priority", "after", "notify", "notify_on")
"""Options that a document has under the same name."""


class PodOptions(Options):
    """The options of `submit` that only pods have."""

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
    array: str | None = option(
        "Run N equal tasks, each as soon as there is capacity, or the tasks with some indices, such as 0-15:2,20. With "
        "%4 behind them, 4 tasks run at a time. In each task, the variable FAIRLEAD_INDEX is its index, from 0.",
        metavar="N|INDICES",
    )
    grid: list[str] | None = option(
        "Run a task for each value of a parameter, as name=value,value. In COMMAND, {name} is the value; so is the "
        "variable FAIRLEAD_PARAM_name. May be repeated: then each combination of values is a task.",
        metavar="NAME=VALUES",
    )
    each_line: Path | None = option(
        "Run a task for each line of a file. In COMMAND, {line} is the line; so is the variable FAIRLEAD_PARAM_line.",
        metavar="FILE",
    )
    throttle: int | None = option("Run at most N tasks of an array at a time.", metavar="N", min=1)
    gang: int | None = option("Run N tasks that start together, or not at all.", metavar="N", min=1)
    min: int | None = option(
        "With --gang: start as soon as this many of its tasks can start; the others follow.", metavar="N", min=1
    )
    cpu: str | None = option("CPUs of each task, such as 2 or 500m.", show_default="1")
    memory: str | None = option("Memory of each task, such as 512Mi or 8Gi.")
    gpu: str | None = option("GPUs of each task: 2, or a fraction of one, such as 0.5.")
    resource: list[str] | None = option("Another resource of each task, as name=amount; may be repeated.")
    priority: int | None = option(
        "In a queue with the order `priority`, jobs with a higher number start first. You may give at most your "
        "max_priority in the queue, which is 0 unless an administrator has set it."
    )
    after: list[str] | None = option(
        "Id of a job that must succeed before this job starts. With :any behind the id, it must only end; with "
        ":failed, end without success; with :started, start; with :each, each task of an array follows the task of "
        "that job with the same index. May be repeated.",
        metavar="JOB[:ok|any|failed|started|each]",
        autocompletion=completion.live_jobs,
    )
    notify: list[str] | None = option(
        "Report the end of the job to a webhook, such as https://host/path, or by mail, as mailto:ann@example.org; may "
        "be repeated.",
        metavar="ADDRESS",
    )
    notify_on: Literal["end", "failure"] | None = option(
        "With --notify: report every end, or only an end without success.", show_default="end"
    )
    hold: bool = option("Start nothing until `fairlead release` releases the job.")
    begin: str | None = option(
        "Start no task before this time: a duration such as 2h, or 2026-11-30T18:00.", metavar="TIME"
    )
    singleton: bool = option("Start after the end of all your earlier jobs with the same name.")
    env: list[str] | None = option(
        "Environment variable, as NAME=value, or NAME for its value here; may be repeated.",
        "-e",
        metavar="NAME[=VALUE]",
    )
    env_file: list[Path] | None = option(
        "File with environment variables, a line NAME=value each, such as .env; may be repeated.", metavar="FILE"
    )
    export: str | None = option(
        "Variables of this shell that the tasks get: names with commas, all, or none. By default an active venv "
        "or conda environment, if the server is on this machine; otherwise there is a warning.",
        metavar="NAMES|all|none",
    )
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
    where: list[str] | None = option(
        "Run only on nodes that meet this condition, such as 'zone in (a, b), !spot'. If repeated, one must be met."
    )
    prefer: list[str] | None = option(
        "Prefer nodes that meet a condition, as condition=weight, such as 'zone = a=10'; may be repeated."
    )
    near: str | None = option(
        "Keep the tasks together on nodes with the same value of this label, if possible.",
        autocompletion=completion.node_labels,
    )
    apart: bool = option("Put each task on a node of its own.")
    scaling: Literal["strict", "partial"] | None = option(
        "How tasks that are added later start: strict, all together; partial, as many as fit."
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
    signal: str | None = option(
        "Begin a stop with this signal, such as USR1, so that the task can save its state. With USR1@60s it is also "
        "sent 60s before --time-limit. SIGTERM follows before the end of the grace.",
        metavar="SIGNAL[@TIME]",
    )
    grace: str | None = option(
        "Time that a stopped task has to end, such as 5min, up to max_grace of the queue.", show_default="preempt_grace"
    )
    image: str | None = option(
        "Run the tasks in a container: docker://NAME, oras://NAME, a .sif file, or an unpacked root folder. The home, "
        "the working directory, /tmp and the GPUs of the tasks are in it.",
        metavar="IMAGE",
    )
    mount: list[str] | None = option(
        "With --image: a folder or file of the node in the container, read-only with :ro; may be repeated.",
        metavar="SRC[:DST][:ro]",
    )
    snapshot: Path | None = option(
        "Freeze the files of this directory now, without those that git ignores, and start the tasks in a copy of them "
        "on each node.",
        metavar="DIRECTORY",
    )
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
    pty: bool = option("Give each task a terminal. `fairlead attach` enters it.")
    shell: bool = option("Run the words of COMMAND as one line in a shell, with /bin/sh -c.")

    @property
    def whole_command(self) -> list[str] | None:
        """The command, with --shell as a line for /bin/sh."""
        return ["/bin/sh", "-c", " ".join(self.command)] if self.shell and self.command else self.command

    def document(
        self, client: Client, file: Path | None = None, or_file: str = ", or --file", follow: bool = False
    ) -> dict[str, Any]:
        """Return the job that the options describe. With a file, they override what it says.

        `follow` is True if the output of its tasks is shown.
        """
        from fairlead.client.endpoint import is_local

        if file is None and not self.command:
            raise wrong("COMMAND", f"give a program and its arguments{or_file}")
        local = is_local(client.url)
        if file is not None:
            job = _read(file)
            several = isinstance(job.get("jobs"), list)
            for each in job["jobs"] if several else [job]:
                if isinstance(each, dict):
                    self._set(each, of_several=several)
            changes = self._stage(local, follow)
            for each in job["jobs"] if several else [job]:
                if isinstance(each, dict) and changes:
                    _change_stage(each, changes)
            _store_snapshots(client, job["jobs"] if several else [job])
            return job
        assert self.command
        job = {"name": _name_of(self.command[0])}
        self._set(job)
        stage = self._stage(local, follow)
        stage.setdefault("resources", {}).setdefault("cpu", "1")
        if local and "directory" not in stage and "snapshot" not in stage:
            stage["directory"] = os.getcwd()
        job["stages"] = [stage]
        _store_snapshots(client, [job])
        return job

    def _set(self, job: dict[str, Any], of_several: bool = False) -> None:
        """Set the keys of a job that options give."""
        for name in OF_JOB:
            # The name is that of the pipeline then, and `submit_pipeline` refuses `after`.
            if getattr(self, name) not in (None, []) and not (of_several and name in ("name", "after")):
                job[name] = getattr(self, name)
        for name in ("singleton", "hold"):
            if getattr(self, name):
                job[name] = True
        if self.begin:
            job["begin"] = time.time() + seconds_until(self.begin, "--begin")
        _merge(job, "labels", pairs(self.label, "--label"))

    def _environment(self, local: bool, follow: bool) -> dict[str, str]:
        environment = environment_of(
            os.environ,
            given=self.env or (),
            files=self.env_file or (),
            export=self.export or ("none" if self.image else None),  # a venv of this machine is not in the image
            command=self.command or (),
            local=local,
            follow=follow,
        )
        if self.pty and "TERM" in os.environ:
            environment.setdefault("TERM", os.environ["TERM"])
        return environment

    def _stage(self, local: bool, follow: bool) -> dict[str, Any]:
        """Return the fields of a stage that options give."""
        check_duration(self.estimate, "--estimate")
        check_duration(self.time_limit, "--time-limit")
        check_duration(self.grace, "--grace")
        parameters = self._parameters()
        by_line = "there is no COMMAND; write the line for the shell behind --, or drop --shell"
        of_array = "tasks of an array start one by one, those of a gang together; drop --array or --gang"
        of_sweep = "tasks of a sweep start one by one; drop it, or the parameters"
        of_gang = "it is the number of tasks of a gang that start together; add --gang"
        for option_name, is_wrong, problem in (
            ("--shell", self.shell and not self.command, by_line),
            ("--gang", self.gang and self.array, of_array),
            ("--gang", self.gang and parameters, of_sweep),
            ("--min", self.min and not self.gang, of_gang),
        ):
            if is_wrong:
                raise wrong(option_name, problem)
        stage = {
            "command": self.whole_command,
            "array": int(self.array) if self.array and self.array.isdecimal() else self.array,
            "parameters": parameters,
            "count": self.gang,
            "resources": amounts_of(self.resource, self.cpu, self.memory, self.gpu),
            "secrets": pairs(self.secret, "--secret"),
            "selectors": pairs(self.selector, "--selector"),
            "where": self.where,
            "prefer": self._preferences(),
            "apart": self.apart,
            "pty": self.pty,
            "image": _image_of(self.image),
            "mounts": self.mount,
            "snapshot": str(self.snapshot) if self.snapshot else None,
            "tolerations": self.toleration,
            "results": self.result,
            **{name: getattr(self, name) for name in OF_STAGE},
            "environment": self._environment(local, follow),
        }
        return {name: value for name, value in stage.items() if value not in (None, [], {}) and value is not False}

    def _parameters(self) -> dict[str, list[str]]:
        """Return the parameters of `--grid` and `--each-line`."""
        parameters: dict[str, list[str]] = {}
        for name, values in pairs(self.grid, "--grid", "name=value,value").items():
            parameters[name] = values.split(",")
        if self.each_line is not None:
            if "line" in parameters:
                raise wrong("--each-line", "its parameter is called line, as one of --grid is; rename that one")
            need_file(self.each_line)
            try:
                lines = self.each_line.read_text(encoding="utf-8").splitlines()
            except UnicodeDecodeError:
                raise wrong("--each-line", f"{self.each_line} is not text in UTF-8; save it as UTF-8") from None
            if not lines:
                raise wrong("--each-line", f"{self.each_line} has no lines; name a file with one for each task")
            parameters["line"] = lines
        return parameters

    def _preferences(self) -> dict[str, int]:
        preferences: dict[str, int] = {}
        for text in self.prefer or ():
            expression, equals, weight = text.rpartition("=")
            if not equals or not weight.strip().lstrip("-").isdecimal():
                raise wrong("--prefer", f"{text!r} has no weight; write condition=weight, such as 'zone = a=10'")
            preferences[expression.strip()] = int(weight)
        return preferences


def _image_of(image: str | None) -> str | None:
    """Return an image. A path is made absolute, if it is one from here."""
    return image if image is None or "://" in image else os.path.abspath(image)


def _store_snapshots(client: Client, jobs: list[Any]) -> None:
    """Store the directories that stages name as their snapshots, and name what is stored instead."""
    stored: dict[str, str] = {}
    for job in jobs:
        for stage in (job.get("stages") or ()) if isinstance(job, dict) else ():
            directory = stage.get("snapshot") if isinstance(stage, dict) else None
            if isinstance(directory, str) and not DIGEST.fullmatch(directory):
                if directory not in stored:
                    try:
                        stored[directory] = client.store_snapshot(directory)
                    except ValueError as problem:
                        raise wrong("--snapshot", str(problem)) from None
                stage["snapshot"] = stored[directory]


def _read(file: Path) -> dict[str, Any]:
    """Return the job in a file. A job with one stage may be written without a list of stages."""
    from fairlead.wire.api import StageDocument

    document = document_of(file, "a job is written as key: value pairs", may_be_empty=False)
    for job in document["jobs"] if isinstance(document.get("jobs"), list) else [document]:
        if isinstance(job, dict) and "stages" not in job and "command" in job:
            stage_keys = set(StageDocument.__struct_fields__) - {"name"}
            job["stages"] = [{key: job.pop(key) for key in list(job) if key in stage_keys}]
    return document


def _change_stage(job: dict[str, Any], changes: dict[str, Any]) -> None:
    """Change the only stage of a job from a file."""
    stages = job.get("stages")
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        return  # the server says what is wrong
    if len(stages) != 1:
        raise wrong(_option(next(iter(changes))), f"the file has {len(stages)} stages; use --set stages.NAME.KEY=VALUE")
    [stage] = stages
    for key, value in changes.items():
        if isinstance(value, dict) and key != "parameters":
            _merge(stage, key, value)
        else:
            stage[key] = value
    for key, others in (("array", ("count", "min")), ("parameters", ("count", "min")), ("count", ("array",))):
        if key in changes:
            for other in others:
                if other not in changes:
                    stage.pop(other, None)


def set_values(job: dict[str, Any], settings: list[str] | None) -> None:
    """Set keys of a job as `--set KEY=VALUE` says. A key of a stage needs no path if the job has one stage."""
    from fairlead.wire.api import JobDocument, StageDocument

    for text in settings or ():
        path, equals, value = text.partition("=")
        if not equals or not all(path.split(".")):
            raise wrong("--set", f"{text!r} is not KEY=VALUE; write one such as environment.LR=0.1")
        # Names of labels and selectors may have dots, so only the first one separates.
        key, *rest = path.split(".", 1)
        place: dict[str, Any] = job
        form: type[msgspec.Struct] = JobDocument
        if key == "stages" or key not in JobDocument.__struct_fields__:
            form = StageDocument
            place, path = _stage_at(job, path)
            key, *rest = path.split(".", 1)
        if rest:
            _merge(place, key, {rest[0]: value})
        else:
            place[key] = _scalar(value, form, key)


def _stage_at(job: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the stage that the path of a key names, or the only one, and the path in the stage."""
    stages = [stage for stage in job.get("stages") or () if isinstance(stage, dict)]
    if path.startswith("stages.") and path.count(".") > 1:
        _, name, path = path.split(".", 2)
        named = {str(stage.get("name", "main")): stage for stage in stages}
        if name not in named:
            raise wrong("--set", f"the job has no stage {name}; name one of {', '.join(named)}")
        return named[name], path
    if len(stages) != 1:
        raise wrong("--set", f"the job has {len(stages)} stages; write stages.NAME.{path}=VALUE")
    return stages[0], path


def _scalar(text: str, form: type[msgspec.Struct], key: str) -> Any:
    """Return the value of a key as its form has it: a number, true or false, a list in brackets, or the text itself."""
    if text[:1] in ("[", "{"):
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            raise wrong("--set", f"{text!r} is not a list or a mapping; write [one, two] or {{key: value}}") from None
    import msgspec

    try:
        return msgspec.convert(text, get_type_hints(form, include_extras=True).get(key, str), strict=False)
    except msgspec.ValidationError:
        return text  # the server says what is wrong


def _merge(document: dict[str, Any], key: str, entries: dict[str, Any]) -> None:
    if entries:
        before = document.get(key)
        document[key] = {**before, **entries} if isinstance(before, dict) else entries


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _name_of(program: str) -> str:
    """Return a job name made from the name of its program, without invalid characters."""
    words = program.split(maxsplit=1)
    last = Path(words[0]).name if words else ""
    kept = "".join(char for char in last if (char.isascii() and char.isalnum()) or char in "._-")
    return kept.lstrip("._-")[:63].replace("..", ".") or "job"
