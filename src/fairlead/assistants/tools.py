"""The tools of assistants. Each is an operation of the API, described by its row in `wire/operations.py`.

A tool's arguments are the parameters of its operation and the keys of its document. The answer is a sentence and the
answer of the API, in which the texts of users are marked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from fairlead.assistants.marks import marked, marked_schema, said, texts_in
from fairlead.client import AsyncClient, Problem
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import Change, Operation, Row, row_of

TOOLS: tuple[type[Operation[Any]], ...] = (
    *(op.Whoami, op.Jobs, op.Job, op.Explain, op.Eta, op.DryRun, op.WhatIf, op.Story, op.Table, op.Log),
    *(op.UsageReport, op.JobUsage, op.Queues, op.Queue, op.Loans, op.Nodes, op.Node),
    *(op.Submit, op.UpdateJob, op.SetPriority, op.Hold, op.Release, op.Requeue, op.Rerun, op.Scale, op.Kill),
    *(op.MoveNode, op.MoveQueue),
)
FILLED_IN = ("key", "min_revision", "wait", "follow", "after")
"""Parameters that tools do not have: they are for programs that wait or send again."""
REFERENCE = "#/$defs/{name}"
LOG_BYTES = 8_000
"""The end of a log that is returned unless another part is asked for."""
ENDS = frozenset((op.Kill, op.Requeue, op.Scale, op.UpdateJob, op.SetPriority, op.MoveNode, op.MoveQueue))
"""Changes that may stop running tasks or keep them from starting."""


class TextOfTask(msgspec.Struct, frozen=True):
    """A part of the output of a task."""

    output: str


class Described(NamedTuple):
    """A tool as the protocol describes it."""

    name: str
    description: str
    arguments: dict[str, Any]
    answer: dict[str, Any]
    changes: bool
    ends: bool


class Result(NamedTuple):
    """What a tool answers: sentences, data, and whether it failed."""

    sentence: str
    data: dict[str, Any]
    failed: bool = False


@cache
def described() -> dict[str, Described]:
    """Return the tools by name."""
    return {row.name: _described(row) for row in map(row_of, TOOLS)}


def _described(row: Row) -> Described:
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    for parameter in row.parameters:
        if parameter.name in FILLED_IN:
            continue
        properties[parameter.name] = msgspec.json.schema(parameter.type)
        if parameter.required:
            required.append(parameter.name)
    if row.document is not None:
        (form,), definitions = msgspec.json.schema_components([row.document.type], ref_template=REFERENCE)
        document = definitions.pop(form["$ref"].rpartition("/")[2])
        properties |= document["properties"]
        required += document.get("required", [])
    arguments = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": definitions,
    }
    kind = TextOfTask if row.operation is op.Log else row.answer
    schema, components = marked_schema(kind, REFERENCE)
    answer = {
        "type": "object",
        "properties": {
            "sentence": {"type": "string", "description": "The answer in words. Names of users' things are quoted."},
            "answer": schema,
            "problem": {"type": "object", "description": "Why nothing was done."},
            "confirm": {
                "type": "string",
                "description": "Nothing was done yet. After the user has agreed, call again with this as `confirm`.",
            },
        },
        "required": ["sentence"],
        "$defs": components,
    }
    may = "" if row.route.role in ("", "user") else f" Only for tokens of role {row.route.role}."
    return Described(row.name, row.description + may, arguments, answer, row.route.changes, row.operation in ENDS)


async def call(client: AsyncClient, name: str, arguments: dict[str, Any]) -> Result:
    """Carry out a tool call. A change that affects others is answered with what it would do, until it is confirmed."""
    row = {row.name: row for row in map(row_of, TOOLS)}[name]
    try:
        asked = _operation(row, dict(arguments))
        if isinstance(asked, op.Log):
            parts = [part async for part in client.stream(asked)]
            answer: Any = TextOfTask(b"".join(parts).decode(errors="replace"))
        else:
            answer = await client.send(asked)
        texts = texts_in(answer)
        if isinstance(answer, wire.Explanation | wire.Story | wire.Eta) and name != "eta":
            texts |= texts_in(await client.send(op.Job(job=answer.job, tasks=True)))
    except Problem as problem:
        if problem.code == "unconfirmed":
            effect = problem.detail.partition("; to do it")[0]
            sentence = (
                f"Nothing was done yet: {said(effect)}. Ask the user, then call again with confirm={problem.confirm}."
            )
            return Result(sentence, {"confirm": problem.confirm})
        told = {"detail": problem.detail, "code": problem.code, "field": problem.field, "status": problem.status}
        return Result(said(str(problem)), {"problem": told}, True)
    return Result(said(_sentence(row, asked, answer), texts), {"answer": marked(answer, texts)})


def _operation(row: Row, arguments: dict[str, Any]) -> Operation[Any]:
    """Return the operation of a tool call. Raise `Problem` for a wrong argument."""
    values: dict[str, Any] = {}
    for parameter in row.parameters:
        if parameter.name in FILLED_IN or parameter.name not in arguments:
            if parameter.required:
                raise Problem("missing; give it", 422, "invalid", parameter.name)
            continue
        try:
            values[parameter.name] = msgspec.convert(arguments.pop(parameter.name), parameter.type, strict=False)
        except msgspec.ValidationError as problem:
            raise Problem(f"{problem}; correct it", 422, "invalid", parameter.name) from None
    if row.document is not None:
        values[row.document.name] = arguments  # the server checks it
    elif arguments:
        known = ", ".join(described()[row.name].arguments["properties"])
        raise Problem(f"there is no such argument; {row.name} has {known}", 422, "invalid", next(iter(arguments)))
    if issubclass(row.operation, Change):
        values.setdefault("confirm", "ask")
    if row.operation is op.Log:
        values.setdefault("offset", -LOG_BYTES)
    return row.operation(**values)


# -- answers in words --------------------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tally(states: list[str], noun: str) -> str:
    counts = {state: states.count(state) for state in sorted(set(states))}
    parts = ", ".join(f"{number} {state}" for state, number in counts.items())
    return f"{_count(len(states), noun)}{': ' if parts else ''}{parts}."


def _explained(asked: Any, answer: wire.Explanation) -> str:
    remedies = [remedy.text for waiting in answer.waiting for remedy in waiting.remedies]
    return ". ".join([answer.sentence, *(f"It would start if {text}" for text in remedies[:3])]) + "."


def _dry(asked: Any, answer: wire.DryRun) -> str:
    return f"{answer.sentence}{f'. {answer.eta.text}' if answer.eta else ''}."


def _used(asked: Any, answer: wire.UsageReport) -> str:
    hours = ", ".join(f"{amount:.3g} {name} hours" for name, amount in answer.total.hours.items() if name != "memory")
    return f"{_count(answer.total.jobs, 'job')} used {hours or 'nothing'}."


def _compared(asked: Any, answer: wire.WhatIf) -> str:
    moved = f"{answer.earlier} would start earlier, {answer.later} later, {answer.same} at the same time"
    return f"Of {_count(answer.compared, 'job')}, {moved}. {answer.note}".strip()


def _whoami(asked: Any, answer: wire.Caller) -> str:
    scope = answer.scope
    bounds = ["changes nothing"] * scope.read_only + [f"changes only jobs of {scope.queue}"] * bool(scope.queue)
    bounds += ["needs confirmations"] * scope.confirm
    bounds += [f"has {left:.3g} {name} hours left" for name, left in scope.left.items()]
    return f"The token is of user {answer.user}, role {answer.role}" + "".join(f"; it {each}" for each in bounds) + "."


SENTENCES: dict[Any, Callable[[Any, Any], str]] = {
    wire.Caller: _whoami,
    wire.JobPage: lambda asked, answer: _tally([job.state for job in answer.jobs], "job"),
    wire.Job: lambda asked, answer: f"job {answer.id} is {answer.state}.",
    wire.Explanation: _explained,
    wire.Eta: lambda asked, answer: f"{answer.text}.",
    wire.DryRun: _dry,
    wire.WhatIf: _compared,
    wire.Story: lambda asked, answer: ". ".join(line.text for line in answer.lines[-8:]) + ".",
    wire.Table: lambda asked, answer: _tally([row.state for row in answer.rows], "task"),
    TextOfTask: lambda asked, answer: "The output of the task is in answer.output. A program wrote it, not Fairlead.",
    wire.UsageReport: _used,
    wire.JobUsage: lambda asked, answer: "The answer has what the tasks used beside what they asked for.",
    wire.Queues: lambda asked, answer: f"{_count(len(answer.queues), 'queue')}.",
    wire.Queue: lambda asked, answer: f"queue {answer.path} is {answer.state}; {_count(answer.running, 'task')} run.",
    wire.Loans: lambda asked, answer: f"{_count(len(answer.loans), 'queue')} use more than their entitlement.",
    wire.Nodes: lambda asked, answer: _tally([node.state for node in answer.nodes], "node"),
    wire.Node: lambda asked, answer: f"node {answer.name} is {answer.state}; {_count(answer.tasks, 'task')} run.",
    wire.Submitted: lambda asked, answer: (
        f"job {answer.job} was submitted{'; ' * bool(answer.warning)}{answer.warning}."
    ),
}
"""Answer → what is said about it."""


def _sentence(row: Row, asked: Any, answer: Any) -> str:
    say = SENTENCES.get(type(answer))
    if say is not None:
        return say(asked, answer)
    return f"{row.name} was done{'; ' * bool(answer.note)}{answer.note}."
