"""Charts as SVG text: lines and bars. A page with charts needs no network.

A chart has its numbers in a `data-chart` attribute. A short script of the report shows the values under the mouse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 34
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000", "#f0e442", "#882255")
"""A palette that colour-blind readers can distinguish."""

Show = Callable[[float], str]


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


class Bars(NamedTuple):
    """A group of bars, one value for each label."""

    name: str
    values: Sequence[float]


class Axis(NamedTuple):
    """An axis from `low` to `high` with marks. It is logarithmic if `log`."""

    low: float
    high: float
    marks: Sequence[float]
    show: Show
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if self.log:
            low, high = log10(self.low), log10(self.high)
            return (log10(max(value, self.low)) - low) / ((high - low) or 1)
        return (value - self.low) / ((self.high - self.low) or 1)


def linear(high: float, show: Show, low: float = 0.0) -> Axis:
    """Return a linear axis with four to eight round marks."""
    span = (high - low) or 1.0
    step = 10.0 ** floor(log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    marks = [step * number for number in range(ceil(low / step), floor(high / step + 1e-9) + 1)]
    return Axis(low, high or 1.0, marks, show)


def stepped(marks: Sequence[float], low: float, high: float, show: Show) -> Axis:
    """Return a logarithmic axis with the given marks that lie on it."""
    return Axis(low, high, [mark for mark in marks if low <= mark <= high], show, log=True)


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, pointed: bool = True) -> str:
    """Draw lines. With `pointed`, all lines have the same x values, and the mouse shows the value of each line."""
    body = _frame(x, y)
    for number, line in enumerate(lines):
        points = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in line.points)
        body += f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="1.6"/>'
    if not pointed or not lines:
        return _svg(body, None)
    data = {
        "x": [[_x(x, a), x.show(a)] for a, _ in lines[0].points],
        "lines": [
            {"name": line.name, "colour": _colour(number), "y": [y.show(b) for _, b in line.points]}
            for number, line in enumerate(lines)
        ],
    }
    return _svg(body, data)


def bar_chart(groups: Sequence[Bars], labels: Sequence[str], y: Axis) -> str:
    """Draw bars. Bars with the same label stand side by side."""
    x = Axis(0, max(1, len(labels)), (), str)
    body = _frame(x, y)
    room = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    wide = min(40.0, room * 0.8 / max(1, len(groups)))
    for at, label in enumerate(labels):
        middle = LEFT + room * (at + 0.5)
        body += f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>'
        for number, group in enumerate(groups):
            top = _y(y, group.values[at])
            left = middle + (number - len(groups) / 2) * wide
            body += (
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1.0, wide - 1):.1f}" '
                f'height="{max(0.0, HEIGHT - BOTTOM - top):.1f}" fill="{_colour(number)}">'
                f"<title>{escape(f'{label}, {group.name}: {y.show(group.values[at])}')}</title></rect>"
            )
    return _svg(body, None)


def legend(names: Sequence[str]) -> str:
    keys = (
        f'<span><i style="background:{_colour(number)}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def picture(lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Draw a line chart with its legend and style as a file of its own."""
    chart = line_chart(lines, x, y, pointed=False)
    names, at, below = "", LEFT, HEIGHT
    for number, line in enumerate(lines):
        wide = 40 + 7 * len(line.name)
        if at + wide > WIDTH:
            at, below = LEFT, below + 20
        names += f'<rect x="{at}" y="{below + 4}" width="12" height="4" fill="{_colour(number)}"/>'
        names += f'<text x="{at + 18}" y="{below + 10}">{escape(line.name)}</text>'
        at += wide
    body = chart[chart.index(">") + 1 :].replace("</svg>", "")
    style = "text{font:12px sans-serif;fill:#444}.grid{stroke:#ddd}.axis,.tick{stroke:#444}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below + 20}" role="img">'
    return f'{head}<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{body}{names}</svg>\n'


def _svg(body: str, data: object) -> str:
    carried = "" if data is None else f" data-chart='{escape(json.dumps(data), quote=True)}'"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"{carried}>{body}</svg>'


def _frame(x: Axis, y: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    body = ""
    for mark in y.marks:
        level = _y(y, mark)
        body += f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"/>'
        body += f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{escape(y.show(mark))}</text>'
    for mark in x.marks:
        place = _x(x, mark)
        body += f'<line class="tick" x1="{place:.1f}" x2="{place:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        body += f'<text x="{place:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(x.show(mark))}</text>'
    return body + f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.at(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - max(0.0, min(1.0, axis.at(value))) * (HEIGHT - TOP - BOTTOM)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
