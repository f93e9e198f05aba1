"""docs/guarantees.md names tests that exist, and lists the bugs of the track record."""

import ast
import re
from pathlib import Path

import pytest

from tests.track_record import BUGS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    defined = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert name in assigned | defined and name.lower().startswith("test"), f"{file} has no test {name}"


def test_sentences_name_tests() -> None:
    promises = re.findall(r"^- \*\*.*?(?=^- |^$|^#)", PAGE, re.MULTILINE | re.DOTALL)
    without = [promise for promise in promises if "::test" not in promise.lower()]
    assert len(promises) > 15 and len(without) == 2, without  # no order between partitions; not exactly once


def test_the_track_record_is_listed() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert [(int(at), fix, what) for at, fix, what in rows] == [
        (at, bug.fix, bug.what) for at, bug in enumerate(BUGS, 1)
    ]
