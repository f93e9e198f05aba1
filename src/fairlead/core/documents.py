"""Read documents of jobs and nodes (YAML, JSON or Python objects) into specifications."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from fairlead.core.arrays import MAX_ITEMS, MAX_TASKS, Array, parse_array, parse_parameters
from fairlead.core.changes import NodeSpec
from fairlead.core.errors import Refused
from fairlead.core.expressions import parse_preferences, parse_where
from fairlead.core.model import (
    CONDITIONS,
    After,
    Amounts,
    ChosenPolicy,
    Condition,
    Gang,
    JobSpec,
    Micros,
    NotifyOn,
    Parameters,
    Scaling,
    StageSpec,
)
from fairlead.core.reader import Reader, check_label, check_name, check_text, parse_moment
from fairlead.core.resources import CPU, MEMORY, parse_capacity, parse_duration, parse_request, shown
from fairlead.core.shape import Selectors

MAX_STAGES = 1_000
MIN_PRIORITY = -(2**31)
MAX_PRIORITY = 2**31 - 1
MAX_JOB = 2 * 2**20
"""Maximum length of all texts of a job together, in characters."""
MAX_LABELS = 100
MAX_AFTER = 1_000
MAX_TARGETS = 10
HOST = re.compile(r"(?:[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
WEB = re.compile(r"https?://([A-Za-z0-9[][^/?#\s]*)(?:[/?][!-~]*)?")
MAIL = re.compile(r"mailto:[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9][A-Za-z0-9.-]{0,253}")
LEAST_MEMORY = 2**20
MAX_VALUES = 1_000
"""Accepted values of one label."""
MAX_RESULTS = 100
"""Maximum number of patterns of result files of a stage."""
MAX_PATTERN = 1_000
MAX_NODE_LABELS = 1_000
MAX_LABEL = 1_000
"""Maximum length of the value of a label, in characters."""


NOTHING: Mapping[str, object] = {}
ONE_CPU: Mapping[str, object] = {CPU: 1}
"""The resources of submitted stages that name none."""


def parse_job(doc: object, field: str = "", resources: Mapping[str, object] = NOTHING) -> JobSpec:
    """Read a job. `resources` are the resources of stages that name none."""
    read = Reader(doc, field, "a job")
    stages = read.get("stages", [])
    if not isinstance(stages, list | tuple) or not stages:
        raise Refused(read.at("stages"), "a job needs at least one stage; write a list of stages")
    if len(stages) > MAX_STAGES:
        raise Refused(read.at("stages"), f"{len(stages)} stages are too many; at most {MAX_STAGES} are allowed")
    specs: list[StageSpec] = []
    items = 0
    for at, stage in enumerate(stages):
        specs.append(parse_stage(stage, read.at(f"stages[{at}]"), resources))
        items += sum(len(values) for _, values in specs[-1].parameters) + len(specs[-1].indices) // 2
        if items > MAX_ITEMS:
            problem = f"more than {MAX_ITEMS:,} values of parameters and separate indices in all stages are too"
            raise Refused(read.at("stages"), f"{problem} many; split the job")
    named: dict[str, int] = {}
    for at, spec in enumerate(specs):
        if spec.name in named:
            raise Refused(
                read.at(f"stages[{at}].name"),
                f'"{spec.name}" is also the name of stage {named[spec.name]}; give each stage its own',
            )
        named[spec.name] = at
    # With YAML anchors, a short document can contain a text many times.
    size = sum(len(text) for spec in specs for text in _texts(spec))
    if size > MAX_JOB:
        raise Refused(read.at("stages"), f"{size} characters are too many for a job; write at most {MAX_JOB}")
    job = JobSpec(
        name=read.name("name", "job"),
        user=read.name("user", "anonymous"),
        queue=read.text("queue", "", most=1_000),
        stages=tuple(specs),
        groups=read.names("groups", most=1_000),
        priority=read.count("priority", 0, MIN_PRIORITY, MAX_PRIORITY),
        labels=read.pairs("labels", most=MAX_LABELS, longest=MAX_LABEL),
        after=parse_after(read),
        gang=cast(Gang, read.choice("gang", ("stage", "job"), "stage")),
        preemptible=read.flag("preemptible", True),
        preempts=read.flag("preempts", True),
        done_when=_done_when(read, specs),
        hold=read.flag("hold", False),
        begin=read.optional("begin", parse_moment, None),
        singleton=read.flag("singleton", False),
        notify=tuple(
            check_target(target, read.at(f"notify[{at}]"))
            for at, target in enumerate(read.texts("notify", MAX_TARGETS))
        ),
        notify_on=cast(NotifyOn, read.choice("notify_on", ("end", "failure"), "end")),
    )
    read.close()
    return job


def check_target(target: str, field: str) -> str:
    """Refuse a target that is neither the URL of a webhook nor a mail address."""
    web = WEB.fullmatch(target)
    if len(target) > MAX_PATTERN or not (web or MAIL.fullmatch(target)):
        raise Refused(field, f"{shown(target)} is no address; write https://host/path or mailto:ann@example.org")
    if web and "@" in web[1]:
        raise Refused(field, "an address may not contain a password; leave the part before @ out")
    host = HOST.fullmatch(web[1]) if web else None
    if web and (host is None or int(host[1] or 80) not in range(1, 65_536)):
        raise Refused(field, f"{shown(web[1])} is no host with a port; write example.org:8080 or [2001:db8::1]:8080")
    return target


def parse_after(read: Reader) -> tuple[str, ...]:
    """Read the jobs that a job comes after, each with an optional condition."""
    found: dict[str, str] = {}
    for at, text in enumerate(read.texts("after", most=MAX_AFTER)):
        field = read.at(f"after[{at}]")
        job, colon, when = text.partition(":")
        check_name(job, field)
        if colon and when not in CONDITIONS:
            known = ", ".join(f"{job}:{condition}" for condition in CONDITIONS)
            raise Refused(field, f"{shown(text)} has no known condition; write {job} or one of {known}", "unknown")
        after = str(After(job, cast(Condition, when or "ok")))
        if found.setdefault(job, after) != after:
            raise Refused(field, f"job {job} has two conditions, {found[job]} and {after}; write one of them")
    return tuple(found.values())


def _done_when(read: Reader, stages: Sequence[StageSpec]) -> str:
    """Read the stage whose success ends the job, or one of its tasks as `main[0]`; empty if the document has none."""
    if read.get("done_when") is None:
        return ""
    condition = Reader(read.get("done_when"), read.at("done_when"), "the end of a job")
    name = condition.name("stage")
    stage = next((stage for stage in stages if stage.name == name), None)
    if stage is None:
        known = ", ".join([stage.name for stage in stages[:20]])
        raise Refused(condition.at("stage"), f"the job has no stage {shown(name)}; name one of {known}", "unknown")
    task = condition.optional_count("task", 0, stage.count - 1)
    condition.close()
    return name if task is None else f"{name}[{task}]"


def _changed_resources(read: Reader) -> Amounts:
    """Read the changed amounts; 0 removes a resource."""
    given = read.get("resources")
    amounts = parse_request(given, read.at("resources"))
    return tuple(sorted((dict.fromkeys(cast(Any, given), 0) | amounts).items()))


def _changed_duration(key: str) -> Callable[[Reader], Micros | None]:
    return lambda read: None if read.get(key) == "none" else read.optional_duration(key)


CHANGES: dict[str, Callable[[Reader], Any]] = {
    "queue": lambda read: read.text("queue", most=1_000),
    "priority": lambda read: read.count("priority", 0, MIN_PRIORITY, MAX_PRIORITY),
    "after": parse_after,
    "resources": _changed_resources,
    "time_limit": _changed_duration("time_limit"),
    "estimate": _changed_duration("estimate"),
    "throttle": lambda read: 0 if read.get("throttle") == "none" else read.count("throttle", low=1, high=MAX_TASKS),
}
"""The keys of a change that replace a value of the job, and how they are read."""


def parse_changes(doc: object) -> dict[str, Any]:
    """Read the changes of a job as the fields of `UpdateJob`."""
    read = Reader(doc, "", "a change of a job")
    changes: dict[str, Any] = {"stage": read.name("stage", "")}
    changes |= {key: parse(read) for key, parse in CHANGES.items() if read.get(key) is not None}
    labels = read.get("labels", {})
    if isinstance(labels, Mapping):
        gone = [name for name, value in labels.items() if value is None]
        changes["unlabel"] = tuple(check_label(name, read.at("labels")) for name in gone)
        kept = Reader({"labels": {name: labels[name] for name in labels if name not in gone}}, "", "a change of a job")
        changes["labels"] = kept.pairs("labels", most=MAX_LABELS, longest=MAX_LABEL)
    else:
        read.pairs("labels")  # refuses it
    if changes.get("time_limit") == 0:
        raise Refused(read.at("time_limit"), "0 would end every task at once; write none for no limit")
    read.close()
    if not (changes.keys() - {"stage", "labels", "unlabel"} or changes.get("labels") or changes.get("unlabel")):
        names = "queue, priority, after, labels, resources, time_limit, estimate or throttle"
        raise Refused("", f"nothing to change; name {names}")
    return changes


def check_amounts(amounts: Amounts, field: str) -> None:
    """Refuse memory that is too small for a process, because its unit was forgotten."""
    memory = dict(amounts).get(MEMORY, 0)
    if 0 < memory < LEAST_MEMORY:
        remedy = f"write {memory}Gi or {memory}Mi if that is meant" if memory < 1024 else "write at least 1Mi"
        raise Refused(f"{field}.memory", f"{memory} bytes are too little for a process; {remedy}")


SCHEMES = ("docker", "oras")
"""What an image may be fetched by."""
SIGNALS = ("USR1", "USR2", "INT", "HUP", "QUIT", "TERM")
PATTERN_CODES = ("j", "s", "a", "r")


def parse_stage(doc: object, field: str, resources: Mapping[str, object] = NOTHING) -> StageSpec:
    read = Reader(doc, field, "a stage")
    count, least, array, parameters = _parse_size(read)
    stage = StageSpec(
        name=read.name("name", "main"),
        count=count,
        min=least or 0,
        resources=tuple(sorted(parse_request(read.get("resources", resources), read.at("resources")).items())),
        selectors=parse_selectors(read.get("selectors", {}), read.at("selectors")),
        tolerations=tuple(sorted(set(read.texts("tolerations", most=100)))),
        pool=read.name("pool", ""),
        command=read.texts("command"),
        environment=read.pairs("environment", names=False),
        estimate=read.optional_duration("estimate"),
        time_limit=read.optional_duration("time_limit"),
        tries=read.count("tries", 1, 1, 1_000),
        on_loss=_policy(read, "on_loss"),
        scaling=cast(Scaling, read.choice("scaling", ("strict", "partial"), "strict")),
        near=read.optional("near", check_label, ""),
        apart=read.flag("apart", False),
        directory=read.text("directory", "", most=4_096),
        secrets=read.pairs("secrets", names=False, most=MAX_LABELS),
        output=_pattern(read, "output"),
        error=_pattern(read, "error"),
        results=_results(read),
        where=read.optional("where", parse_where, ()),
        prefer=read.optional("prefer", parse_preferences, ()),
        on_failure=_policy(read, "on_failure"),
        indices=array.indices,
        parameters=parameters,
        throttle=array.throttle,
        pty=read.flag("pty", False),
        stdin=read.flag("stdin", False),
        signal=read.optional("signal", _signal, ""),
        image=read.optional("image", _image, ""),
        mounts=_mounts(read),
        snapshot=read.optional("snapshot", parse_digest, ""),
        grace=read.optional_duration("grace"),
    )
    _check_stage(read, stage)
    read.close()
    return stage


def _check_stage(read: Reader, stage: StageSpec) -> None:
    """Refuse values that other values of the stage exclude."""
    for at, toleration in enumerate(stage.tolerations):
        if toleration.count("*") > 1:
            raise Refused(read.at(f"tolerations[{at}]"), f"{shown(toleration)} has more than one *; write at most one")
    if stage.directory and not stage.directory.startswith("/"):
        raise Refused(
            read.at("directory"), f"{shown(stage.directory)} is not an absolute path; write one that starts with /"
        )
    if stage.snapshot and stage.directory:
        raise Refused(read.at("directory"), "the files of the snapshot are the working directory; leave it out")
    if stage.mounts and not stage.image:
        raise Refused(read.at("mounts"), "they are folders in a container, and there is none; add image")
    for variable, name in stage.secrets:
        check_name(name, read.at(f"secrets.{variable}"))
    if stage.pty and (stage.output or stage.error):
        key = "output" if stage.output else "error"
        raise Refused(read.at(key), "the output of a task with a pty goes to its terminal and its log; leave it out")
    _check_time_limit(read, stage)


def _check_time_limit(read: Reader, stage: StageSpec) -> None:
    """Refuse a time limit of 0, and a signal that would come before a task begins."""
    if "@" in stage.signal:
        before = parse_duration(stage.signal.partition("@")[2], read.at("signal"))
        if stage.time_limit is None or before >= stage.time_limit:
            limit = "there is none" if stage.time_limit is None else "that is not longer"
            raise Refused(read.at("signal"), f"{shown(stage.signal)} is a time before time_limit, but {limit}; set it")
    if stage.time_limit == 0:
        raise Refused(read.at("time_limit"), "0 would end every task at once; leave it out for no limit")


def _parse_size(read: Reader) -> tuple[int, int | None, Array, Parameters]:
    """Return the bound of the indices of a stage, its `min` (1 for an array, None if the document names none), which
    indices its array has, and the parameters of a sweep."""
    parameters = parse_parameters(read)
    array = parse_array(read, parameters)
    least = read.optional_count("min", 1, MAX_TASKS)
    if array.bound is None:
        count = read.count("count", 1, 1, MAX_TASKS)
        if least is not None and least > count:
            raise Refused(read.at("min"), f"{least} is more than the count {count}; write at most {count}")
        if array.throttle and array.throttle < (least or count):
            start = "all of them" if least is None else f"{least}"
            raise Refused(
                read.at("throttle"),
                f"{array.throttle} of {count} tasks cannot run alone, because {start} start together; write array "
                "instead of count for tasks that start one by one",
            )
        return count, least, array, parameters
    for key in ("count", "min"):
        if read.get(key) is not None:
            meaning = f"which means count: {array.bound} and min: 1"
            what = "parameters, which make an array" if parameters else f"array, {meaning}"
            raise Refused(
                read.at(key),
                f"it stands beside {what}; write array alone for tasks that "
                "start one by one, or count alone for tasks that start together",
            )
    return array.bound, 1, array, parameters


def _signal(value: object, field: str) -> str:
    """Return a signal without its prefix, with the time before the time limit if there is one."""
    text = value.strip().upper() if isinstance(value, str) else ""
    name, at, _ = text.partition("@")
    name = name.removeprefix("SIG")
    if name not in SIGNALS:
        listed = ", ".join(SIGNALS)
        raise Refused(
            field, f"{shown(value)} is not a signal; write one of {listed}, or USR1@60s for 60s before time_limit"
        )
    before = str(value).partition("@")[2].strip()
    if at:
        parse_duration(before, field)
    return name + (f"@{before}" if at else "")


def _image(value: object, field: str) -> str:
    text = check_text(value, field, most=4_096).strip()
    scheme, sign, rest = text.partition("://")
    if (sign and (scheme not in SCHEMES or not rest)) or not (sign or text.startswith("/")) or not text.isprintable():
        raise Refused(
            field,
            f"{shown(text)} is no image; write docker://NAME or oras://NAME, or the absolute path of a .sif file or "
            "of an unpacked root folder",
        )
    if " " in rest:
        raise Refused(field, f"{shown(text)} has a space in the name of the image; leave it out")
    return text


def _mounts(read: Reader) -> tuple[str, ...]:
    mounts = read.texts("mounts", most=MAX_LABELS)
    for at, mount in enumerate(mounts):
        paths = mount.removesuffix(":ro").split(":")
        usable = all(path.startswith("/") and path.isprintable() and ".." not in path.split("/") for path in paths)
        if not usable or len(paths) > 2 or len(mount) > MAX_PATTERN or not paths[-1].strip("/"):
            remedy = "write SOURCE:TARGET or SOURCE:TARGET:ro with absolute paths, such as /data:/mnt/data:ro"
            raise Refused(read.at(f"mounts[{at}]"), f"{shown(mount)} is no mount; {remedy}")
    return mounts


def parse_digest(value: object, field: str) -> str:
    """Read the SHA-256 of stored content."""
    text = check_text(value, field, most=100)
    if not re.fullmatch("[0-9a-f]{64}", text):
        remedy = "write 64 hexadecimal digits of stored content, or let `fairlead submit --snapshot DIRECTORY` store it"
        raise Refused(field, f"{shown(text)} is no SHA-256; {remedy}")
    return text


def _policy(read: Reader, key: str) -> ChosenPolicy:
    return cast(ChosenPolicy, read.choice(key, ("replace", "restart", "fail"), ""))


def _pattern(read: Reader, key: str) -> str:
    text = read.text(key, "", most=4_096)
    _check_codes(text, read.at(key))
    return text


def _check_codes(text: str, field: str) -> None:
    codes = text.split("%")[1:]
    while codes:
        code = codes.pop(0)
        if not code and codes:  # %%
            codes.pop(0)
        elif code[:1] not in PATTERN_CODES:
            raise Refused(
                field,
                f"%{code[:1]} in {shown(text)} stands for nothing; write %j for the id of the job, %s for the stage, "
                "%a for the index of the task, %r for its attempt, or %% for a percent sign",
            )


def _results(read: Reader) -> tuple[str, ...]:
    patterns = read.texts("results", most=MAX_RESULTS)
    for at, pattern in enumerate(patterns):
        field = read.at(f"results[{at}]")
        _check_codes(pattern, field)
        problem = ""
        if not pattern or len(pattern) > MAX_PATTERN:
            problem = f"a pattern has 1 to {MAX_PATTERN} characters; write one such as out/*.csv"
        elif pattern.startswith("/") or ".." in pattern.split("/"):
            problem = f"{shown(pattern)} leads out of the working directory; write a path below it, or set directory"
        elif not pattern.isprintable():
            problem = f"{shown(pattern)} has control characters; files with such names are not collected"
        elif pattern.endswith("/"):
            problem = f"{shown(pattern)} is a directory; write {pattern}** for all files below it"
        if problem:
            raise Refused(field, problem)
    return patterns


def _texts(spec: StageSpec) -> Iterator[str]:
    """Yield the texts of a stage whose number or length no other check limits enough."""
    yield from spec.command
    yield from spec.tolerations
    yield from (spec.directory, spec.output, spec.error, *spec.results, spec.image, *spec.mounts)
    yield from chain(*spec.environment, *spec.secrets)
    for _, values in spec.parameters:
        yield from values
    for label, values in spec.selectors:
        yield label
        yield from values
    for term in (*spec.where, *(term for term, _ in spec.prefer)):
        for expression in term:
            yield expression.label
            yield from expression.values


def parse_selectors(doc: object, field: str) -> Selectors:
    """Read selectors: label → a value, a list of accepted values, or `*` for any value."""
    if not isinstance(doc, Mapping):
        raise Refused(field, f"{shown(doc)} is not a mapping; write label: value")
    if len(doc) > MAX_LABELS:
        raise Refused(field, f"{len(doc)} labels are too many; write at most {MAX_LABELS}")
    selectors: list[tuple[str, tuple[str, ...]]] = []
    for label, wanted in doc.items():
        at = f"{field}.{check_label(label, field)}"
        values = wanted if isinstance(wanted, list | tuple) else [wanted]
        if not values:
            raise Refused(at, "an empty list matches no node; name at least one value, or * for any")
        if len(values) > MAX_VALUES:
            raise Refused(at, f"{len(values)} values are too many; write at most {MAX_VALUES}")
        selectors.append((label, tuple(sorted({check_text(value, at, most=256) for value in values}))))
    return tuple(sorted(selectors))


def parse_node(doc: object, field: str = "") -> tuple[str, NodeSpec]:
    read = Reader(doc, field, "a node")
    name = read.name("name")
    spec = NodeSpec(
        capacity=tuple(sorted(parse_capacity(read.get("resources", {}), read.at("resources")).items())),
        labels=read.pairs("labels", most=MAX_NODE_LABELS, longest=MAX_LABEL),
        taints=tuple(sorted(set(read.texts("taints", most=100)))),
        pool=read.name("pool", ""),
        users=tuple(sorted(set(read.names("users", most=1_000)))),
    )
    read.close()
    return name, spec
