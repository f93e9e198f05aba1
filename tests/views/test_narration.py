"""Sentences of stories: every event of a job has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fairlead.views.narration import TOLD, Narrator

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
ONLY_LOGGED = {"lane reset", "not placed", "gang start undone"}
"""Events with a job that a story tells by other events."""


def test_every_event_of_a_job_has_a_sentence() -> None:
    rows = re.findall(r"^\| `([a-z ]+)` \| [^|]* \| (.*) \|$", METRICS.read_text(encoding="utf-8"), re.MULTILINE)
    of_jobs = {event for event, fields in rows if "`job`" in fields}
    assert len(of_jobs) > 15 and of_jobs - ONLY_LOGGED <= TOLD.keys(), of_jobs - ONLY_LOGGED - TOLD.keys()


PLACED = {"stage": "main", "tasks": 1, "attempt": 1, "nodes": 1, "on": ["n1"], "by": "the scheduler"}
STOPPED = {"stage": "main", "tasks": 1, "nodes": 1, "on": ["n1"], "cause": "preempt"}


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        (
            "job submitted",
            {"user": "ann", "queue": "root.a", "tasks": 1, "priority": 0},
            "submitted by ann to queue root.a",
        ),
        (
            "job submitted",
            {"user": "ann", "queue": "root.a", "tasks": 3, "priority": 5, "after": ["7", "8"], "by": "operator eve"},
            "submitted by operator eve for ann to queue root.a, 3 tasks, with priority 5, to start after jobs 7 and 8",
        ),
        ("job held", {"by": "user ann"}, "held by ann: no task starts until the job is released"),
        ("tasks placed", {**PLACED, "waited_seconds": 0.0}, "sent to n1 at once"),
        ("tasks placed", {**PLACED, "waited_seconds": 300.0}, "sent to n1 after waiting 5min"),
        ("tasks running", {"stage": "main", "tasks": 1, "attempt": 2, "node": "n1"}, "started on n1 (attempt 2)"),
        (
            "tasks stopped",
            {**STOPPED, "for": "job 7", "right": "priority"},
            "told to stop on n1 for job 7, which has a higher priority",
        ),
        (
            "tasks stopped",
            {**STOPPED, "for": "queue root.b"},
            "told to stop on n1 for queue root.b, which is below its share",
        ),
        ("tasks stopped", {**STOPPED, "cause": "kill", "for": ""}, "told to stop on n1, because the job was killed"),
        (
            "tasks lost",
            {"stage": "main", "tasks": 1, "node": "n3", "again": "replace", "reason": "node n3 was lost"},
            "lost: node n3 was lost; the task will run again",
        ),
        (
            "tasks failed",
            {"stage": "main", "tasks": 1, "node": "n3", "again": None, "reason": "exit code 2"},
            "failed on n3: exit code 2",
        ),
        (
            "tasks ended",
            {"stage": "main", "tasks": 1, "node": "n3", "outcome": "succeeded", "exit_code": 0},
            "succeeded on n3",
        ),
        (
            "job over",
            {"state": "killed", "lasted_seconds": 31.0, "reason": "killed by ann"},
            "the job was killed, 31s after it was submitted: killed by ann",
        ),
        (
            "nodes held",
            {"stage": "main", "tasks": 1, "nodes": 2, "on": ["n1", "n2"], "waited_seconds": 1200.0},
            "2 nodes are kept free for it now: n1 and n2, because it has waited for 20min",
        ),
        ("an event of later", {"stage": "main", "node": "n1", "large": False}, "an event of later: node n1"),
    ],
)
def test_sentences_of_a_job_with_one_task(event: str, fields: dict[str, Any], text: str) -> None:
    assert Narrator(several=False).sentence(event, fields) == text


def test_sentences_of_a_job_with_several_tasks_say_how_many() -> None:
    narrator = Narrator(several=True)
    at = {"stage": "worker", "attempt": 1, "node": "n1"}
    assert narrator.sentence("tasks running", {**at, "tasks": 1}) == "worker: 1 task started on n1 (attempt 1)"
    assert narrator.sentence("tasks running", {**at, "tasks": 4}) == "worker: 4 tasks started on n1 (attempt 1)"
    lost = {**at, "tasks": 4, "again": "replace", "reason": "node n1 was lost"}
    assert narrator.sentence("tasks lost", lost) == "worker: 4 tasks lost: node n1 was lost; they will run again"
