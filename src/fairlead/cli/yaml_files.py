"""Reads YAML files written by users. Their size is limited, also with aliases expanded: those can make it huge."""

from __future__ import annotations

from pathlib import Path

import yaml

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
MAX_DEPTH = 100

Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Unreadable(Exception):
    """Raised if a file is not valid YAML, with the problem and its line, if known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem, line)
        self.problem = problem
        self.line = line


def read_document(path: Path) -> object:
    """Return the document in a YAML file, None if the file is empty."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES:,} bytes; a configuration is never that large")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise Unreadable(f"byte {content[problem.start]:#04x} is not UTF-8; save the file as UTF-8", line) from None
    try:
        _measure(text)
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        detail = ": ".join(part for part in (problem.context, problem.problem) if part)
        raise Unreadable(f"not YAML: {detail}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as problem:
        raise Unreadable(f"not YAML: {' '.join(str(problem).split())}") from None
    except (ValueError, OverflowError) as problem:  # a value that looks like a number or a date but is invalid
        raise Unreadable(f"a value cannot be read: {problem}; put it in quotes") from None


class _Open:
    """A mapping or sequence that is not closed yet."""

    def __init__(self, anchor: str | None, mapping: bool) -> None:
        self.anchor = anchor
        self.size = 1
        self.keys: set[str] | None = set() if mapping else None
        self.at_key = True


def _measure(text: str) -> None:
    """Refuse a document that is too large with its aliases expanded, or that has a key twice in a mapping."""
    above = [_Open(None, False)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader):
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if len(above) > MAX_DEPTH:
                    raise Unreadable(f"more than {MAX_DEPTH} levels deep", _line(event))
                above.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
                continue
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                done = above.pop()
                size, anchor = done.size, done.anchor
            case yaml.AliasEvent():
                if event.anchor not in sizes and any(collection.anchor == event.anchor for collection in above):
                    raise Unreadable(f"*{event.anchor} contains itself; remove the alias", _line(event))
                size, anchor = sizes.get(event.anchor or "", 1), None
            case yaml.ScalarEvent():
                size, anchor = 1, event.anchor
                _check_key(above[-1], event)
            case _:
                continue
        if anchor is not None:
            sizes[anchor] = size
        parent = above[-1]
        parent.size += size
        parent.at_key = not parent.at_key
        if parent.size > MAX_NODES:
            raise Unreadable(f"more than {MAX_NODES:,} values, with its aliases followed; write less", _line(event))


def _check_key(parent: _Open, event: yaml.ScalarEvent) -> None:
    if parent.keys is None or not parent.at_key or event.value == "<<":
        return
    if event.value in parent.keys:
        raise Unreadable(f"{event.value[:40]!r} is twice in one mapping; remove one", _line(event))
    parent.keys.add(event.value)


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark else None
