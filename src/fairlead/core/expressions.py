"""Conditions on labels of nodes, in the syntax of Kubernetes label selectors: `zone in (a, b), !spot, cores > 8`.

A term is a list of expressions that must all be true. Of several terms, at least one must be true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.reader import LABEL, check_text
from fairlead.core.resources import printable, shown

MAX_TERMS = 100
MAX_EXPRESSIONS = 100
MAX_VALUES = 1_000
MAX_TERM = 16_384
"""Maximum length of the text of a term, in characters."""
MAX_WEIGHT = 1_000

Operator: TypeAlias = Literal["in", "notin", "exists", "!", ">", "<"]

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_VALUE = r"[^\s,()=!<>*]*"
_FORMS: tuple[tuple[re.Pattern[str], Operator], ...] = (
    (re.compile(r"\s*!\s*(\S+)\s*"), "!"),
    (re.compile(r"\s*(\S+)\s+in\s+\(([^()]*)\)\s*"), "in"),
    (re.compile(r"\s*(\S+)\s+notin\s+\(([^()]*)\)\s*"), "notin"),
    (re.compile(rf"\s*([^\s!=<>]+)\s*==?\s*({_VALUE})\s*"), "in"),
    (re.compile(rf"\s*([^\s!=<>]+)\s*!=\s*({_VALUE})\s*"), "notin"),
    (re.compile(r"\s*([^\s!=<>]+)\s*>\s*(\S+)\s*"), ">"),
    (re.compile(r"\s*([^\s!=<>]+)\s*<\s*(\S+)\s*"), "<"),
    (re.compile(r"\s*(\S+)\s*"), "exists"),
)
_ONE_VALUE = re.compile(_VALUE)
_COMMA = re.compile(r",(?![^(]*\))")
_RULE = (
    "write label, !label, label = value, label != value, label in (one, two), label notin (one, two), label > 8 or "
    "label < 8, separated by commas"
)


class Expression(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A condition on one label. `notin` and `!` are also true for nodes without the label."""

    label: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.label)
        if self.operator == "in":
            return value is not None and value in self.values
        if self.operator == "notin":
            return value is None or value not in self.values
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        if value is None or not _NUMBER.fullmatch(value):
            return False
        return int(value) > int(self.values[0]) if self.operator == ">" else int(value) < int(self.values[0])

    def __str__(self) -> str:
        if self.operator in ("in", "notin"):
            if len(self.values) == 1:
                return f"{self.label}{'=' if self.operator == 'in' else '!='}{self.values[0]}"
            return f"{self.label} {self.operator} ({','.join(self.values)})"
        if self.operator in (">", "<"):
            return f"{self.label}{self.operator}{self.values[0]}"
        return f"!{self.label}" if self.operator == "!" else self.label


Term: TypeAlias = tuple[Expression, ...]
Where: TypeAlias = tuple[Term, ...]
"""Sorted terms, of which at least one must be true. No terms accept every node."""
Preferences: TypeAlias = tuple[tuple[Term, int], ...]
"""Sorted terms, each with the weight of a node for which it is true."""


def holds(term: Term, labels: Mapping[str, str]) -> bool:
    """True if all expressions of a term are true."""
    return all([expression.holds(labels) for expression in term])


def accepts(where: Where, labels: Mapping[str, str]) -> bool:
    return not where or any([holds(term, labels) for term in where])


def format_term(term: Term) -> str:
    """Return a term as text that `parse_term` can read."""
    return ", ".join(map(str, term))


def format_where(where: Where) -> str:
    return " or ".join(map(format_term, where))


def labels_of(terms: Where) -> Iterator[str]:
    return (expression.label for term in terms for expression in term)


# -- reading -----------------------------------------------------------------------------------------------------


def parse_where(doc: object, field: str) -> Where:
    """Read a term, or a list of terms of which at least one must be true."""
    if isinstance(doc, str):
        return (parse_term(doc, field),)
    if not isinstance(doc, list | tuple):
        raise Refused(field, f"{shown(doc)} is not an expression; {_RULE}")
    if not doc:
        raise Refused(field, "an empty list matches no node; leave it out for all nodes")
    if len(doc) > MAX_TERMS:
        raise Refused(field, f"{len(doc)} alternatives are too many; write at most {MAX_TERMS}")
    return tuple(sorted({parse_term(text, f"{field}[{at}]") for at, text in enumerate(doc)}))


def parse_preferences(doc: object, field: str) -> Preferences:
    """Read terms with weights."""
    if not isinstance(doc, Mapping):
        raise Refused(field, f'{shown(doc)} is not a mapping; write expressions with weights, such as "zone = a": 10')
    if len(doc) > MAX_TERMS:
        raise Refused(field, f"{len(doc)} expressions are too many; write at most {MAX_TERMS}")
    weights: dict[Term, int] = {}
    for text, weight in doc.items():
        term = parse_term(text, field)
        at = f"{field}.{printable(text, 100)}"
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
            raise Refused(at, f"{shown(weight)} is not a weight; write a whole number from 1 to {MAX_WEIGHT}")
        if term in weights:
            raise Refused(at, "the same expression is there twice; write it once, with one weight")
        weights[term] = weight
    return tuple(sorted(weights.items()))


def parse_term(text: object, field: str) -> Term:
    parts = _COMMA.split(check_text(text, field, most=MAX_TERM))
    if len(parts) > MAX_EXPRESSIONS:
        raise Refused(field, f"{len(parts)} conditions are too many; write at most {MAX_EXPRESSIONS}")
    return tuple(sorted({_parse_expression(part, field) for part in parts}))


def _parse_expression(text: str, field: str) -> Expression:
    for form, operator in _FORMS:
        match = form.fullmatch(text)
        if match is None or not LABEL.fullmatch(match[1]):
            continue
        if operator in ("exists", "!"):
            return Expression(match[1], operator)
        if operator in (">", "<"):
            if not _NUMBER.fullmatch(match[2]):
                raise Refused(field, f"{shown(match[2])} is not a whole number; compare {match[1]} with one")
            return Expression(match[1], operator, (str(int(match[2])),))
        values = {value.strip() for value in match[2].split(",")}
        if len(values) > MAX_VALUES:
            raise Refused(field, f"{len(values)} values are too many; write at most {MAX_VALUES}")
        wrong = sorted(value for value in values if not _ONE_VALUE.fullmatch(value))
        if wrong:
            raise Refused(field, f"{shown(wrong[0])} is not a value; a value has no blanks and none of , ( ) = ! < > *")
        return Expression(match[1], operator, tuple(sorted(values)))
    raise Refused(field, f"{shown(text.strip())} is not an expression; {_RULE}")
