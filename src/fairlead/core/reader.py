"""Reads documents that people write. Each error names the field and a remedy. Unknown keys are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from fairlead.core.errors import Refused
from fairlead.core.resources import SECOND, parse_count, parse_duration, printable, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}")
NAME_RULE = "a name has 1 to 63 letters, digits or . _ @ + - and starts with a letter or digit"
MAX_TEXT = 131_072
MAX_COMPARED = 1_000
LEAST_PART = 3
"""A name that is part of another one counts as near if it has at least this number of characters."""

Value = TypeVar("Value")


def check_name(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise Refused(field, f"{shown(value)} is not text; {NAME_RULE}")
    if not NAME.fullmatch(value) or ".." in value:
        raise Refused(field, f"{shown(value)} is not a name; {NAME_RULE}, without two dots in a row")
    return value


def check_text(value: object, field: str, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str):
        raise Refused(field, f"{shown(value)} is not text; write it in quotes")
    if len(value) > most:
        raise Refused(field, f"{len(value)} characters are too many; at most {most} are allowed")
    if "\0" in value:
        raise Refused(field, "a zero character is not allowed; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(field, "half a surrogate pair is not a character; remove it") from None
    return value


def check_entries(doc: object, field: str, most: int) -> None:
    """Refuse a document with too many entries, as when it contains itself or repeats a part many times."""
    waiting, seen = [doc], 0
    while waiting:
        part = waiting.pop()
        inside = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ()
        seen += 1 + len(inside)
        if seen > most:
            raise Refused(field, f"it has more than {most} entries, or contains itself; write less at once")
        waiting += inside


def suggestion(wrong: str, names: Collection[str]) -> str:
    """Return ` (did you mean …?)` with the nearest name; empty if none is near."""
    near = nearest_name(wrong, names)
    return f" (did you mean {near}?)" if near else ""


def nearest_name(wrong: str, names: Collection[str]) -> str:
    """Return the name that is most similar to the wrong one, is part of it or contains it; empty if there is none.

    Case is ignored. More than `MAX_COMPARED` names are not compared.
    """
    if len(names) > MAX_COMPARED:
        return ""
    folded: dict[str, str] = {}
    for name in sorted(names):
        folded.setdefault(name.casefold(), name)
    asked, wrong = wrong, wrong[:64].casefold()
    close = get_close_matches(wrong, list(folded), n=1, cutoff=0.6)
    parts = [name for name in folded if min(len(name), len(wrong)) >= LEAST_PART and (name in wrong or wrong in name)]
    return next((folded[name] for name in (*close, *parts) if folded[name] != asked), "")


class Reader:
    """One mapping of a document, read key by key. `close` refuses keys that were not read."""

    def __init__(self, doc: object, field: str, what: str) -> None:
        if not isinstance(doc, Mapping):
            raise Refused(
                field or what.rpartition(" ")[2],
                f"{shown(doc)} is not a mapping; {what} is written as key: value pairs",
            )
        for key in doc:
            if not isinstance(key, str):
                raise Refused(field or what.rpartition(" ")[2], f"the key {shown(key)} is not text; write it in quotes")
        self.doc: Mapping[str, object] = doc
        self.field = field
        self.what = what
        self._read: dict[str, None] = {}

    def at(self, key: str) -> str:
        """Return the full field name of a key, shortened and on one line because the key may be arbitrary input."""
        if len(key) > 100 or not key.isprintable():
            key = printable(key, 100)
        return f"{self.field}.{key}" if self.field else key

    def get(self, key: str, default: object = None) -> object:
        """Return the value as it is. A null counts as missing."""
        self._read[key] = None
        value = self.doc.get(key)
        return default if value is None else value

    def optional(self, key: str, parse: Callable[[object, str], Value], default: Value) -> Value:
        """Return the value as `parse` reads it from the value and the field name."""
        value = self.get(key)
        return default if value is None else parse(value, self.at(key))

    def name(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        return self._left_out(key, default) if value is None else check_name(value, self.at(key))

    def text(self, key: str, default: str | None = None, most: int = MAX_TEXT) -> str:
        value = self.get(key)
        return self._left_out(key, default) if value is None else check_text(value, self.at(key), most)

    def count(self, key: str, default: int | None = None, low: int = 0, high: int = 10_000_000) -> int:
        value = self.get(key)
        return self._left_out(key, default) if value is None else parse_count(value, self.at(key), low, high)

    def optional_count(self, key: str, low: int = 0, high: int = 10_000_000) -> int | None:
        value = self.get(key)
        return None if value is None else parse_count(value, self.at(key), low, high)

    def optional_duration(self, key: str) -> int | None:
        value = self.get(key)
        return None if value is None else parse_duration(value, self.at(key))

    def duration(self, key: str, default: int) -> int:
        return self.optional(key, parse_duration, default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise Refused(self.at(key), f"{shown(value)} is neither true nor false; write one of them")
        return value

    def choice(self, key: str, options: Collection[str], default: str | None = None) -> str:
        value = self.get(key)
        if value is None:
            return self._left_out(key, default)
        if value not in options:
            hint = suggestion(value, options) if isinstance(value, str) else ""
            is_off = value is False and "off" in options  # YAML reads off, no and false alike
            remedy = 'off, in YAML with quotes: "off"' if is_off else "one of them"
            raise Refused(self.at(key), f"{shown(value)} is not one of {', '.join(options)}{hint}; write {remedy}")
        return str(value)

    def texts(self, key: str, most: int = 10_000) -> tuple[str, ...]:
        """Return a list of texts, such as a command."""
        return tuple(check_text(item, self.at(f"{key}[{at}]")) for at, item in enumerate(self._list(key, most)))

    def names(self, key: str, most: int = 10_000) -> tuple[str, ...]:
        return tuple(check_name(item, self.at(f"{key}[{at}]")) for at, item in enumerate(self._list(key, most)))

    def pairs(
        self, key: str, names: bool = True, most: int = 10_000, longest: int = MAX_TEXT
    ) -> tuple[tuple[str, str], ...]:
        """Return a mapping of texts as sorted pairs. Keys are labels or, without `names`, names of variables."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise Refused(self.at(key), f"{shown(value)} is not a mapping; write key: value pairs")
        if len(value) > most:
            raise Refused(self.at(key), f"{len(value)} entries are too many; at most {most} are allowed")
        pairs: list[tuple[str, str]] = []
        for label, text in value.items():
            name = check_label(label, self.at(key)) if names else check_variable(label, self.at(key))
            field = self.at(f"{key}.{name}")
            pairs.append((name, check_text(text, field, longest)))
        return tuple(sorted(pairs))

    def close(self) -> None:
        """Refuse keys that were not read."""
        for key in self.doc:
            if key not in self._read:
                keys = ", ".join(sorted(self._read))
                raise Refused(self.at(key), f"{self.what} has no such key{suggestion(key, self._read)}; it has {keys}")

    def _left_out(self, key: str, default: Value | None) -> Value:
        if default is None:
            close = get_close_matches(key, list(self.doc)[:MAX_COMPARED], n=1, cutoff=0.75)
            hint = f" (is {printable(close[0])} meant for it?)" if close else ""
            raise Refused(self.at(key), f"missing; {self.what} needs it{hint}")
        return default

    def _list(self, key: str, most: int) -> Sequence[object]:
        value = self.get(key, ())
        if not isinstance(value, list | tuple):
            raise Refused(self.at(key), f"{shown(value)} is not a list; write [one, two]")
        if len(value) > most:
            raise Refused(self.at(key), f"{len(value)} entries are too many; at most {most} are allowed")
        return value


LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,126}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def check_label(value: object, field: str) -> str:
    if not isinstance(value, str) or not LABEL.fullmatch(value):
        raise Refused(field, f"{shown(value)} is not a label; use letters, digits and . _ / - (at most 127)")
    return value


def check_variable(value: object, field: str) -> str:
    if not isinstance(value, str) or not VARIABLE.fullmatch(value):
        raise Refused(field, f"{shown(value)} is not a variable's name; use letters, digits and _ , not a digit first")
    return value


def parse_moment(value: object, field: str) -> int:
    """Read a time in seconds since 1970 as microseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
        raise Refused(field, f"{shown(value)} is not a time; write seconds since 1970, such as 1790000000")
    return int(value * SECOND)
