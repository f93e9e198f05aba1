"""The report: one file that needs nothing else, with the figures of all policies."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.sim.batch import Run, run_policies
from fairlead.sim.charts import Axis, Bars, Line, bar_chart, line_chart, linear, stepped
from fairlead.sim.policy_files import NAMED, policy_of
from fairlead.sim.report import means, page, time_axis
from fairlead.sim.traces.own import read_document


class Page(HTMLParser):
    """A parser that checks that tags are closed, and collects what tests compare."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.charts: list[dict[str, object]] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]
        if given.get("data-chart"):
            self.charts.append(json.loads(given["data-chart"] or ""))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]


def runs_of(document: str, *names: str) -> list[Run]:
    trace = read_document(yaml.safe_load(document), "<b>week</b>", "extend")
    policies = [NAMED[name](trace) for name in names] or [
        policy_of("<mine>", {"queues": {"root": {"a": {"share": 3}, "b": {"share": 1}}}, "chain": 0})
    ]
    return run_policies(trace, policies, None, lambda _: False)


WEEK = "nodes: [{name: n, count: 4, resources: {cpu: 8}}]\ngenerate: {jobs: 150, load: 120}\njobs: [{stages: [{}]}]"


def test_a_page_with_policies_side_by_side() -> None:
    text = page(runs_of(WEEK, "fcfs", "fair"))
    read = Page(text)
    assert read.of("h1") == ["<b>week</b>"] and "<b>" not in text
    assert read.of("h2") == [
        "Figures",
        "Utilisation",
        "Queue length",
        "Waits",
        "Wait by job size",
        "Share against use: fair",
        "What the figures do not cover",
    ]
    assert [each for each in read.of("th") if each] == ["fcfs", "fair"]
    assert any("duration: missing" in each for each in read.of("li"))
    # Nothing is fetched from anywhere.
    assert read.addresses == [] and "@import" not in text and "url(" not in text
    utilisation, waiting = read.charts
    for chart in (utilisation, waiting):
        assert [line["name"] for line in chart["lines"]] == ["fcfs", "fair"]  # type: ignore[attr-defined]
        assert len(chart["x"]) == 400  # type: ignore[arg-type]


def test_shares_and_use() -> None:
    text = page(
        runs_of(
            """
            nodes: [{name: n, resources: {cpu: 4}}]
            jobs:
              - {queue: a, stages: [{count: 3, resources: {cpu: 1}, duration: 100s}]}
              - {queue: b, stages: [{resources: {cpu: 1}, duration: 100s}]}
            """
        )
    )
    titles = Page(text).of("title")
    assert titles[0] == "<b>week</b>: <mine>"
    assert [title for title in titles if "share" in title or "use" in title] == [
        "a, share: 75 %",
        "a, use: 75 %",
        "b, share: 25 %",
        "b, use: 25 %",
    ]


def test_nothing_has_happened() -> None:
    trace = read_document(yaml.safe_load(WEEK), "week", "extend")
    runs = run_policies(trace, [NAMED["fcfs"](trace)], None, lambda _: True)
    assert any("interrupted" in each for each in Page(page(runs)).of("li"))


def test_the_command_writes_it(tmp_path: Path) -> None:
    trace, out = tmp_path / "week.yaml", tmp_path / "week.html"
    trace.write_text(WEEK)
    done = CliRunner().invoke(app, ["simulate", str(trace), "--report", str(out)])
    assert done.exit_code == 0, done.output
    assert Page(out.read_text(encoding="utf-8")).of("h1") == ["week.yaml"]


# -- parts -------------------------------------------------------------------------------------------------------


def test_means_over_time() -> None:
    # 4 from 0 to 10, 8 from 10 to 30, 0 afterwards; looked at from 0 to 40 in four parts, and from 5 to 15 in one.
    times, values = [0, 10, 30], [4, 8, 0]
    assert means(times, values, 0, 40, 4) == [(5, 4), (15, 8), (25, 8), (35, 0)]
    assert means(times, values, 5, 15, 1) == [(10, 6)]
    assert means([], [], 0, 10, 2) == [(2.5, 0), (7.5, 0)]
    assert means([3, 3], [7, 9], 0, 4, 1) == [(2, 9 / 4)]


@pytest.mark.parametrize(
    ("high", "marks"),
    [(100, [0, 20, 40, 60, 80, 100]), (7, [0, 1, 2, 3, 4, 5, 6, 7]), (0.9, [0, 0.2, 0.4, 0.6, 0.8]), (1, None)],
)
def test_round_marks(high: float, marks: list[float] | None) -> None:
    axis = linear(high, str)
    assert 4 <= len(axis.marks) <= 9 and all(0 <= mark <= high * 1.0001 for mark in axis.marks)
    if marks is not None:
        assert list(axis.marks) == pytest.approx(marks)


def test_scales() -> None:
    assert [stepped((1, 10, 100, 1000), 1, 100, str).at(value) for value in (1, 10, 100)] == [0, 0.5, 1]
    assert Axis(0, 10, (), str).at(5) == 0.5 and Axis(0, 0, (), str).at(0) == 0
    assert time_axis(10 * 86_400).show(86_400) == "1 d" and time_axis(90).show(30) == "30 s"


def test_charts_of_nothing() -> None:
    axis = linear(0, str)
    assert line_chart([], axis, axis).startswith("<svg") and bar_chart([], [], axis).endswith("</svg>")
    assert "data-chart" in line_chart([Line("a", [])], axis, axis)
    assert "3" in bar_chart([Bars("a", [3.0])], ["x"], linear(5, lambda value: f"{value:.0f}"))
