"""Marks what users wrote, so that an assistant can tell it from what Fairlead says.

In data, such a text stands alone in a field `written_by_user`. In sentences, names are quoted. Text that users wrote
may try to give orders ("ignore all previous instructions"); neither place lets it look like a sentence of Fairlead's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

MARK = "written_by_user"
WRITTEN = frozenset(
    "Job.name Job.labels Job.reason Job.waits_for Stage.name Stage.command Stage.parameters TaskGroup.reason "
    "Table.parameters TableRow.parameters TableRow.line TableRow.reason TableRow.stage "
    "Waiting.stage Cause.stage Step.stage Step.labels Placement.stage StoryLine.fields MovedStart.name Node.reason "
    "Node.labels Node.taints JobUsage.stages TaskUse.stage TextOfTask.output".split()
)
"""Fields of answers, as `Type.field`, with text that users chose freely or could have."""
SENTENCES = frozenset(
    "Cause.text Done.note DryRun.never DryRun.sentence Eta.note Eta.text Explanation.sentence Remedy.text "
    "StageUse.hint Step.text StoryLine.text Submitted.warning Waiting.comes Waiting.no_hold Waiting.reason "
    "Waiting.text Waiting.then Wasteful.text WhatIf.note".split()
)
"""Fields of answers with sentences of the server, in which names of users' things may stand."""
PLAIN = frozenset("CPUs GPUs MiB GiB TiB KiB".split())
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*[A-Za-z0-9]|[A-Za-z0-9]")
LONGEST = 14
"""Longer words are quoted: few of ours are, and a long one may be a sentence without spaces."""
NAMED = re.compile(r"\b(?:job|jobs|stage|user|of|for) $")


def marked(value: Any, texts: Iterable[str] = ()) -> Any:
    """Return an answer as JSON values, with the texts of users marked, and names and `texts` in sentences quoted."""
    if isinstance(value, msgspec.Struct):
        kind = type(value).__name__
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {
            name: _mark(field)
            if f"{kind}.{name}" in WRITTEN
            else _said_each(field, texts)
            if f"{kind}.{name}" in SENTENCES
            else marked(field, texts)
            for name, field in fields.items()
        }
    if isinstance(value, list | tuple):
        return [marked(each, texts) for each in value]
    if isinstance(value, dict):
        return {str(key): marked(each, texts) for key, each in value.items()}
    return msgspec.to_builtins(value)


def _said_each(value: Any, texts: Iterable[str]) -> Any:
    return [said(each, texts) for each in value] if isinstance(value, list) else said(value, texts)


def _mark(value: Any) -> Any:
    """Mark a text, also an empty one, so that a field always has the same form."""
    return {MARK: msgspec.to_builtins(value)}


def marked_schema(kind: Any, reference: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of an answer as `marked` returns it, and the definitions that it refers to."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template=reference)
    for name, form in components.items():
        for field, of_field in form.get("properties", {}).items():
            if f"{name}.{field}" in WRITTEN:
                form["properties"][field] = {"type": "object", "properties": {MARK: of_field}, "required": [MARK]}
    return schema, components


def texts_in(value: Any) -> set[str]:
    """Return the texts of users in an answer."""
    found: set[str] = set()

    def add(each: Any) -> None:
        if isinstance(each, str):
            found.add(each)
        elif isinstance(each, dict):
            for key, of_key in each.items():
                add(key)
                add(of_key)
        elif isinstance(each, list):
            for item in each:
                add(item)

    def look(each: Any) -> None:
        if isinstance(each, dict):
            for key, of_key in each.items():
                add(of_key) if key == MARK else look(of_key)
        elif isinstance(each, list):
            for item in each:
                look(item)

    look(marked(value))
    return {text for text in found if len(text) > 1}


def said(sentence: str, texts: Iterable[str] = ()) -> str:
    """Return a sentence of the server on one line, with the names and the given texts of users in it in quotes."""
    for text in sorted(texts, key=len, reverse=True):
        if " " in text or "\n" in text:
            sentence = _outside(sentence, partial(_quoted, text))
    quoted = _outside(sentence, _names_quoted)
    return "".join(each if each.isprintable() else " " for each in quoted)


def _quoted(text: str, part: str) -> str:
    return part.replace(text, json.dumps(text))


def _outside(sentence: str, change: Callable[[str], str]) -> str:
    """Change the parts of a sentence that are not in quotes."""
    parts, at = [], 0
    for found in QUOTED.finditer(sentence):
        parts += [change(sentence[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*parts, change(sentence[at:])])


def _names_quoted(part: str) -> str:
    def quote(found: re.Match[str]) -> str:
        word = found[0]
        if word in PLAIN or re.fullmatch(r"[\d.,:/-]+\w{0,6}", word):
            return word
        joined = re.search(r"[A-Za-z].*[._@+-]|[._@+-].*[A-Za-z]|[a-z][A-Z]|[A-Z]{5}", word)
        after_noun = NAMED.search(part[: found.start()]) and word not in COMMON
        return json.dumps(word) if joined or len(word) > LONGEST or after_noun else word

    return WORD.sub(quote, part)


COMMON = frozenset(
    "a an the other others all each one it its this that them their them another more most of for in at on by to and "
    "or is are was has had have waits waiting tasks task nodes node jobs job time now which what use used CPUs CPU "
    "GPUs GPU memory older earlier later users user queue queues higher lower equal work loans".split()
)
"""Words that follow a noun in our sentences and are no names."""
