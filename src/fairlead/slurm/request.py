"""Turns the options of sbatch, srun and salloc into the document of a job.

A node of the allocation is a task of Fairlead: a job of several nodes is a gang whose members are apart. Options that
Fairlead has no key for are labels of the job, `slurm/OPTION`, from which squeue and sacct show them again.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.slurm.options import Given
from fairlead.slurm.queues import choose_queue
from fairlead.slurm.values import listed, parse_count, parse_duration, parse_size, parse_time
from fairlead.wire.hostlist import expand_hosts

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

PREFIX = "slurm/"
LONGEST = 1_000
"""Characters of a label."""
LABELS = (
    "account", "begin", "comment", "constraint", "dependency", "exclude", "exclusive", "gpus",
    "gpus-per-node", "gpus-per-task", "gres", "input", "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu",
    "mem-per-gpu", "nice", "no-requeue", "nodelist", "open-mode", "qos", "signal", "wckey",
)  # fmt: skip
"""Options that become labels as they were given."""
BAD = re.compile(r"[^A-Za-z0-9._@+-]")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEPT = ("FAIRLEAD_URL", "FAIRLEAD_DATA", "FAIRLEAD_CA", "FAIRLEAD_INSECURE")
"""Variables of Fairlead that a job gets from its submitter. A token is none of them: it would be stored."""
NUMBERS = ("cpus-per-task", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-gpu", "mincpus", "gpus-per-task")
AFTER = {"after": "started", "afterany": "any", "afterok": "ok", "afternotok": "failed", "aftercorr": "each"}


class Wrong(Exception):
    """Raised if a value cannot be used, with the message of Slurm."""


class Shape(NamedTuple):
    """What a job or a part of it asks for: `nodes` equal parts, and the tasks for which there is room."""

    nodes: int
    tasks: int
    per_node: int
    """The most tasks on a node."""
    cpus_per_task: int
    cpus: float
    """CPUs of each node."""
    memory: int
    """MiB on each node; 0 for no limit."""
    resources: dict[str, int | float]
    """Other resources of each node."""

    @property
    def tasks_per_node(self) -> str:
        """As in SLURM_TASKS_PER_NODE: `2(x3),1`."""
        full, rest = divmod(self.tasks, self.per_node)
        counts = [(self.per_node, full)] if full else []
        counts += [(rest, 1)] if rest else []
        return ",".join(f"{tasks}(x{nodes})" if nodes > 1 else str(tasks) for tasks, nodes in counts)

    @property
    def cpus_per_node(self) -> str:
        return f"{self.cpus:g}(x{self.nodes})" if self.nodes > 1 else f"{self.cpus:g}"


class Cluster:
    """Nodes and queues of the server, which are read when an option needs them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._nodes: list[wire.Node] | None = None

    def nodes(self) -> list[wire.Node]:
        if self._nodes is None:
            from fairlead.wire import operations as op

            self._nodes = [node for page in self.client.pages(op.Nodes(limit=1000)) for node in page.nodes]
        return self._nodes

    def usual_cpus(self) -> int:
        """Return the CPUs that most nodes have."""
        counts = Counter(int(node.resources.get("cpu", 0)) for node in self.nodes())
        return max(counts, key=lambda cpus: (counts[cpus], cpus), default=1)

    def most_cpus(self) -> int:
        return max((int(node.resources.get("cpu", 0)) for node in self.nodes()), default=1)

    def models(self, name: str) -> list[str]:
        """Return the GPU models whose names contain a name of a type."""
        models = sorted({node.labels["gpu_model"] for node in self.nodes() if "gpu_model" in node.labels})
        return [model for model in models if name.lower() in model.lower()]


def number(given: Given, name: str) -> int | None:
    if name not in given:
        return None
    try:
        value = parse_count(given[name])
    except ValueError:
        raise Wrong(f'Invalid numeric value "{given[name]}" for --{name}.') from None
    if not value and name != "ntasks":
        raise Wrong(f'Invalid numeric value "{given[name]}" for --{name}.')
    return value


def shape_of(given: Given, cluster: Cluster) -> tuple[Shape, list[str]]:
    """Return the shape that options ask for, and conditions on nodes that follow from it."""
    values = {name: number(given, name) or 0 for name in NUMBERS}
    gpus_per_node, models, resources = _gpus(given)
    nodes, named = _nodes(given)
    per_task, per_node = values["cpus-per-task"] or 1, values["ntasks-per-node"]
    gpus = _count_of(given, "gpus", models)
    tasks = values["ntasks"] or values["ntasks-per-gpu"] * (gpus or gpus_per_node * (nodes or 1))
    if nodes is None:
        nodes = _nodes_for(tasks or 1, per_node, per_task, cluster)
    tasks = tasks or nodes * (per_node or 1)
    nodes = max(1, min(nodes, tasks) if "nodes" not in given and not named else nodes)
    tasks = max(tasks, nodes)
    per_node = per_node or -(-tasks // nodes)
    gpus_per_node = gpus_per_node or -(-gpus // nodes) or values["gpus-per-task"] * per_node
    cpus = max(per_node * per_task, values["cpus-per-gpu"] * gpus_per_node, values["mincpus"])
    if given.get("exclusive") in ("", "exclusive"):
        cpus = max(cpus, cluster.usual_cpus())
    memory = _memory(given, cpus, gpus_per_node)
    if gpus_per_node:
        resources["gpu"] = gpus_per_node
    where = [f"gpu_model in ({', '.join(_models(cluster, model))})" for model in models]
    return Shape(nodes, tasks, per_node, per_task, cpus, memory, resources), where


def _nodes_for(tasks: int, per_node: int, per_task: int, cluster: Cluster) -> int:
    """Return the number of nodes that tasks need, if no option gives it."""
    if tasks > 1 and not per_node:
        per_node = max(1, cluster.most_cpus() // per_task)
    return -(-tasks // (per_node or 1))


def _models(cluster: Cluster, name: str) -> list[str]:
    found = cluster.models(name)
    if not found:
        raise Wrong("Invalid generic resource (gres) specification")
    return found


def _nodes(given: Given) -> tuple[int | None, bool]:
    """Return the number of nodes, and True if nodes are named."""
    named = len(hosts(given))
    if "nodes" not in given:
        return (named or None), bool(named)
    text = given["nodes"].partition("-")[0]
    try:
        nodes = parse_count(text)
    except ValueError:
        nodes = 0
    if not nodes:
        raise Wrong(f'"{given["nodes"]}" is not a valid node count')
    nodes = max(nodes, named)
    if named and nodes > named:
        raise Wrong(f"--nodelist names {named} nodes, and --nodes asks for {nodes}; name as many")
    return nodes, bool(named)


def hosts(given: Given) -> list[str]:
    """Return the nodes that are asked for by name."""
    text = given.get("nodelist", "")
    if "nodefile" in given:
        try:
            with open(given["nodefile"]) as file:
                text = ",".join(file.read().split())
        except OSError as problem:
            raise Wrong(f"Invalid --nodefile: {problem.strerror}") from None
    return _expanded(text, "nodelist")


def _expanded(text: str, option: str) -> list[str]:
    try:
        return list(dict.fromkeys(expand_hosts(text)))
    except ValueError:
        raise Wrong(f"Invalid --{option} specification") from None


def _gpus(given: Given) -> tuple[int, list[str], dict[str, int | float]]:
    """Return GPUs of each node, their models, and other resources of each node."""
    models: list[str] = []
    gpus = _count_of(given, "gpus-per-node", models)
    resources: dict[str, int | float] = {}
    for text in listed(given.get("gres", "")):
        entry = text.removeprefix("gres/").removeprefix("gres:")
        name, *rest = entry.replace("=", ":").split(":")
        count = parse_count(rest.pop()) if rest and rest[-1][:1].isdigit() else 1
        if name in ("gpu", "gpus"):
            gpus += count
            models += rest
        elif entry != "none":
            resources[name] = resources.get(name, 0) + count
    for entry in listed(given.get("licenses", "")):
        name, _, number_of = entry.replace("=", ":").partition(":")
        resources[name] = int(number_of or 1)
    return gpus, models, resources


def _count_of(given: Given, option: str, models: list[str]) -> int:
    """Return a number of GPUs as in `2`, `a100:2` or `a100:2,v100:1`."""
    count = 0
    for entry in listed(given.get(option, "")):
        model, _, text = entry.replace("=", ":").rpartition(":")
        try:
            count += parse_count(text)
        except ValueError:
            raise Wrong(f"Invalid --{option} specification") from None
        models += [model] if model else []
    return count


def _memory(given: Given, cpus: float, gpus: int) -> int:
    try:
        if "mem" in given:
            return parse_size(given["mem"])
        if "mem-per-cpu" in given:
            return int(parse_size(given["mem-per-cpu"]) * cpus)
        if "mem-per-gpu" in given:
            return parse_size(given["mem-per-gpu"]) * gpus
    except ValueError:
        option = next(name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in given)
        raise Wrong(f"Invalid --{option} specification") from None
    return 0


def constraints(text: str) -> list[str]:
    """Return the terms of a constraint, one of which must hold: `a&b|c` is `a, b` or `c`."""
    if re.search(r"\*\d|\[.*\[|\(", text):
        raise Wrong(f"--constraint={text}: counts and nested alternatives are not supported; write a&b or a|b")
    terms = []
    for term in text.replace("[", "").replace("]", "").replace("(", "").replace(")", "").split("|"):
        features = [feature.strip() for feature in term.replace(",", "&").split("&") if feature.strip()]
        terms.append(", ".join(features))
    return terms


def stage_of(given: Given, shape: Shape, where: list[str], name: str, cluster: Cluster) -> dict[str, Any]:
    """Return a stage with the nodes, the resources and the conditions of a shape."""
    resources: dict[str, Any] = {"cpu": shape.cpus, **shape.resources}
    if shape.memory:
        resources["memory"] = shape.memory * 2**20
    stage: dict[str, Any] = {"name": name, "resources": resources}
    named, excluded = hosts(given), _expanded(given.get("exclude", ""), "exclude")
    if named:
        where = [*where, f"node in ({', '.join(named)})"]
    if excluded:
        where = [*where, f"node notin ({', '.join(excluded)})"]
    terms = constraints(given["constraint"]) if "constraint" in given else [""]
    conditions = [", ".join(filter(None, [term, *where])) for term in terms]
    if any(conditions):
        stage["where"] = conditions
    if shape.nodes > 1:
        stage |= {"count": shape.nodes, "apart": True}
    stage["on_failure"] = "fail"
    if "no-requeue" in given:
        stage["on_loss"] = "fail"
    if "time" in given:
        try:
            limit = parse_duration(given["time"])
        except ValueError:
            raise Wrong("Invalid --time specification") from None
        if limit:
            stage["time_limit"] = limit
    return stage


ARRAY = re.compile(r"(\d+(-\d+(:\d+)?)?)(,\d+(-\d+(:\d+)?)?)*(%\d+)?")


def array_of(text: str) -> list[int]:
    """Return the indices of an array."""
    if not ARRAY.fullmatch(text):
        raise Wrong("Batch job submission failed: Invalid job array specification")
    found: set[int] = set()
    for part in text.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        found.update(range(int(low), int(high or low) + 1, int(step or 1)))
    if not found or max(found) >= 10_000_000:
        raise Wrong("Batch job submission failed: Invalid job array specification")
    return sorted(found)


def after_of(text: str) -> list[str]:
    """Return the jobs that a job comes after."""
    found: list[str] = []
    if "?" in text:
        raise Wrong("--dependency: alternatives with ? are not supported; write all of them with commas")
    for part in listed(text):
        kind, *jobs = part.split(":")
        if part == "singleton":
            continue  # a key of its own
        if kind not in AFTER or not jobs:
            raise Wrong("Batch job submission failed: Job dependency problem")
        for part_of in jobs:
            job = part_of.partition("+")[0].partition("_")[0]
            if not job.isdigit():
                raise Wrong("Batch job submission failed: Job dependency problem")
            found.append(job if AFTER[kind] == "ok" else f"{job}:{AFTER[kind]}")
    return found


def passed_on(given: Given, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job gets from its submitter. Variables of an outer job are left out."""
    wanted = given.get("export", "ALL")
    names = wanted.split(",")
    plain = {
        name: value
        for name, value in environment.items()
        if VARIABLE.fullmatch(name)
        and (not name.startswith(("FAIRLEAD_", "SLURM_", "SLURMD_", "SBATCH_")) or name in KEPT)
    }
    if "export-file" in given:
        with open(given["export-file"], "rb") as file:
            pairs = [entry.partition("=") for entry in file.read().decode().split("\0") if "=" in entry]
        return {name: value for name, _, value in pairs}
    found = dict(plain) if "ALL" in names else {name: value for name, value in plain.items() if name in KEPT}
    for name in names:
        variable, equals, value = name.partition("=")
        if equals:
            found[variable] = value
        elif variable in plain:
            found[variable] = plain[variable]
    return found


def pattern_code(pattern: str, name: str, user: str) -> str:
    """Return a file name with Slurm's codes as a word of a shell."""
    variables = {
        "j": "$SLURM_JOB_ID", "J": "$SLURM_JOB_ID", "A": "$FAIRLEAD_JOB", "a": "$SLURM_ARRAY_TASK_ID",
        "N": "$FAIRLEAD_NODE", "n": "0", "t": "0", "s": "batch", "x": name, "u": user,
    }  # fmt: skip
    if "\\" in pattern:
        return shlex.quote(pattern.replace("\\", ""))
    words = []
    for literal, width, code in re.findall(r"([^%]+)|%(\d*)(.?)", pattern):
        value = variables.get(code, "")
        if literal or code in ("%", "") or not (value or code == "b"):
            words.append(shlex.quote(literal or ("%" if code in ("%", "") else f"%{width}{code}")))
        elif code == "b":
            words.append('"$((${SLURM_ARRAY_TASK_ID:-0} % 10))"')
        elif not value.startswith("$"):
            words.append(shlex.quote(value.rjust(int(width or 0), "0") if code in "nt" else value))
        elif width and code in "jAaJ":
            words.append(f'"$(printf %0{min(int(width), 10)}d "{value}")"')
        else:
            words.append(f'"{value}"')
    return "".join(words) or "''"


def fairlead_name(name: str) -> str:
    """Return the name of a job as Fairlead allows it."""
    return BAD.sub("_", name).lstrip("._@+-")[:63] or "job"


SIGNAL = re.compile(r"(?:R?B?:)?(?:R:)?([A-Za-z0-9]+)(?:@(\d+))?", re.IGNORECASE)


def warning_of(given: Given, limit: float | None) -> dict[str, str]:
    """Return variables for the signal before the time limit."""
    if "signal" not in given:
        return {}
    match = SIGNAL.fullmatch(given["signal"])
    if match is None:
        raise Wrong(f"Invalid --signal specification: {given['signal']}")
    name, seconds = match[1].upper().removeprefix("SIG"), int(match[2] or 60)
    if limit is None:
        return {}
    head = given["signal"].upper().partition(":")[0] if ":" in given["signal"] else ""
    warning = {"SLURM_WARN_AFTER": str(max(0, int(limit) - seconds)), "SLURM_WARN_SIGNAL": name}
    return warning | ({"SLURM_WARN_BATCH": "1"} if "B" in head else {})


def labels_of(given: Given, shape: Shape, more: Mapping[str, str]) -> dict[str, str]:
    labels = {name: given[name] or "yes" for name in LABELS if name in given}
    labels |= {name: text for name, text in more.items() if text}
    labels |= {"ntasks": str(shape.tasks), "cpus-per-task": str(shape.cpus_per_task), "nodes": str(shape.nodes)}
    labels |= {"ntasks-per-node": given["ntasks-per-node"]} if "ntasks-per-node" in given else {}
    for name, text in labels.items():
        if len(text) > LONGEST:
            raise Wrong(f"--{name} has {len(text)} characters; write at most {LONGEST}")
    return {PREFIX + name: text for name, text in labels.items()}


def variables_of(given: Given, shape: Shape, name: str, directory: str, user: str) -> dict[str, str]:
    """Return the variables of Slurm that are known at the submission."""
    variables = {
        "SLURM_JOB_NAME": name,
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_CLUSTER_NAME": given.get("clusters") or "fairlead",
        "SLURM_JOB_NUM_NODES": str(shape.nodes),
        "SLURM_NNODES": str(shape.nodes),
        "SLURM_TASKS_PER_NODE": shape.tasks_per_node,
        "SLURM_JOB_CPUS_PER_NODE": shape.cpus_per_node,
        "SLURM_CPUS_ON_NODE": f"{shape.cpus:g}",
        "SLURM_JOB_USER": user,
        "SLURM_JOB_PARTITION": given.get("partition", "default"),
        "ENVIRONMENT": "BATCH",
    }
    if "ntasks" in given or shape.tasks > shape.nodes or "ntasks-per-node" in given:
        variables |= {"SLURM_NTASKS": str(shape.tasks), "SLURM_NPROCS": str(shape.tasks)}
    for option, variable in (("ntasks-per-node", "NTASKS_PER_NODE"), ("cpus-per-task", "CPUS_PER_TASK"),
                             ("account", "JOB_ACCOUNT"), ("qos", "JOB_QOS"), ("comment", "JOB_COMMENT"),
                             ("gpus", "GPUS"), ("gpus-per-node", "GPUS_PER_NODE"), ("gpus-per-task", "GPUS_PER_TASK"),
                             ("cpus-per-gpu", "CPUS_PER_GPU"), ("wckey", "WCKEY")):  # fmt: skip
        if option in given:
            variables[f"SLURM_{variable}"] = given[option]
    if "mem-per-cpu" in given:
        variables["SLURM_MEM_PER_CPU"] = str(parse_size(given["mem-per-cpu"]))
    elif shape.memory:
        variables["SLURM_MEM_PER_NODE"] = str(shape.memory)
    if "gpu" in shape.resources:
        variables["SLURM_GPUS_ON_NODE"] = f"{shape.resources['gpu']:g}"
    if "mail-type" in given:
        types = "ALL" if given["mail-type"].upper() == "ALL" else given["mail-type"].upper()
        variables |= {"SLURM_MAIL_TYPE": types, "SLURM_MAIL_USER": given.get("mail-user", user)}
    return variables


def script_parts(script: str) -> list[str]:
    """Return a script in words that are short enough for a command."""
    size = 32_000  # characters of up to four bytes; a word of a command has at most 128 KiB
    return [script[at : at + size] for at in range(0, len(script), size)]


def document_of(
    parts: Sequence[Given], cluster: Cluster, command: list[str], name: str, environment: Mapping[str, str], user: str
) -> dict[str, Any]:
    """Return the document of a job whose first node runs a command, and whose other nodes hold the allocation.

    `parts` has the options of each part of a heterogeneous job; mostly there is one. `environment` are the variables
    that the job gets beside those of Slurm.
    """
    first = parts[0]
    directory = os.path.abspath(first.get("chdir") or os.getcwd())
    stages, shapes = [], []
    for at, given in enumerate(parts):
        shape, where = shape_of(given, cluster)
        stage = stage_of(given, shape, where, f"het{at}" if len(parts) > 1 else "main", cluster)
        stages.append(stage | {"command": command, "directory": directory})
        shapes.append(shape)
    shape = shapes[0]
    document: dict[str, Any] = {"stages": stages}
    own = fairlead_name(name)
    document["name"] = own
    more = {"name": name if own != name else "", "chdir": directory, "user": ""}
    variables = variables_of(first, shape, name, directory, user) | warning_of(first, stages[0].get("time_limit"))
    if "time_limit" in stages[0]:
        variables["SLURM_JOB_TIME_LIMIT"] = str(int(stages[0]["time_limit"]))
    several = len(parts) > 1 or shape.nodes > 1
    if "array" in first:
        if several:
            raise Wrong("--array with several nodes a task is not supported; submit a job for each")
        stages[0]["array"] = more["array"] = first["array"]
        variables |= _array_variables(array_of(first["array"]))
    elif several:
        document["done_when"] = {"stage": stages[0]["name"], "task": 0}
    if len(parts) > 1:
        document["gang"] = "job"
        variables["SLURM_HET_SIZE"] = str(len(parts))
        for at, part in enumerate(shapes):
            variables[f"SLURM_JOB_NUM_NODES_HET_GROUP_{at}"] = str(part.nodes)
            variables[f"SLURM_NTASKS_HET_GROUP_{at}"] = str(part.tasks)
        for alone in ("SLURM_NTASKS", "SLURM_NPROCS"):
            variables.pop(alone, None)
    for stage in stages:
        stage["environment"] = {**environment, **variables}
    queue = choose_queue(cluster.client, first)
    if queue:
        document["queue"] = queue
        more["partition"] = queue.removeprefix("root.")
    document["labels"] = labels_of(first, shape, more)
    return document | _order_of(first)


def _array_variables(indices: Sequence[int]) -> dict[str, str]:
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    values = {"COUNT": len(indices), "MIN": indices[0], "MAX": indices[-1], "STEP": step}
    return {f"SLURM_ARRAY_TASK_{key}": str(value) for key, value in values.items()}


def _order_of(given: Given) -> dict[str, Any]:
    """Return the keys of a job that say when it may start."""
    keys: dict[str, Any] = {}
    if "dependency" in given:
        keys["after"] = after_of(given["dependency"])
        keys["singleton"] = "singleton" in listed(given["dependency"])
    if "priority" in given:
        keys["priority"] = number(given, "priority")
    elif "nice" in given:
        keys["priority"] = -int(given["nice"] or 100)
    if "hold" in given:
        keys["hold"] = True
    if "begin" in given:
        try:
            keys["begin"] = parse_time(given["begin"])
        except ValueError:
            raise Wrong("Invalid --begin specification") from None
    return keys
