"""The page of `fairlead shadow`: one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fairlead.core.resources import SECOND
from fairlead.shadow.contenders import ABOUT
from fairlead.shadow.gains import Gain
from fairlead.shadow.shadow_run import Shadow
from fairlead.sim.report import charts, document, figure_table, notes, row, section
from fairlead.sim.text import ROWS, plural, span

SHOWN = 30
"""Users and queues on the page, those that used most."""
TITLES = {"user": "Users", "queue": "Queues", "size": "Sizes of jobs"}
SIMULATED = ("cycles", "decisions_per_s", "wall_s")
"""Figures that the recorded past does not have."""


def shadow_page(shadow: Shadow) -> str:
    trace, runs = shadow.trace, shadow.runs
    about = (
        f"{plural(len(trace.arrivals), 'job')} on {plural(len(trace.nodes), 'node')}: what happened, "
        "and what Fairlead would have done with the same jobs at the same times."
    )
    parts = [
        _contenders(shadow),
        figure_table(runs, tuple(entry for entry in ROWS if entry[1] not in SIMULATED)),
        *[_gains(kind, gains, shadow) for kind, gains in shadow.gains.items()],
        section("Predicted starts", shadow.predictions.text, ""),
        *charts(runs),
        section("How to read this", CAUTION, ""),
        notes(runs),
    ]
    return document(f"{trace.name}: a shadow", trace.name, about, parts)


CAUTION = (
    "The jobs run as long as they did, on nodes that do not fail. Limits of users and accounts, licences, maintenance "
    "and the order in which people would have submitted under other waits are not known here, so part of the waits "
    "that happened has other reasons than the policy: easy shows how much. A job waits from the time at which it was "
    "eligible."
)


def _contenders(shadow: Shadow) -> str:
    lines = "".join(
        f"<tr><td>{escape(run.policy.name)}</td><td style='text-align:left;white-space:normal'>"
        f"{escape(ABOUT.get(run.policy.name, 'your configuration'))}</td><td>{escape(_verdict(shadow, at))}</td></tr>"
        for at, run in enumerate(shadow.runs)
    )
    return section("Compared", "", f"<table>{lines}</table>")


def _verdict(shadow: Shadow, run: int) -> str:
    if not run:
        return ""
    changes = [gain.change(run) for gain in shadow.gains["user"]]
    return f"{plural(changes.count(-1), 'user')} wait less, {changes.count(1)} longer"


def _gains(kind: str, gains: Sequence[Gain], shadow: Shadow) -> str:
    names = [run.policy.name for run in shadow.runs]
    unit = shadow.trace.resource.upper()
    head = f"<th></th><th>jobs</th><th>{unit} hours</th>" + "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for gain in gains[:SHOWN]:
        waits = [-1.0 if wait is None else wait / SECOND for wait in gain.waits]
        counts = f"<td>{gain.jobs:,}</td><td>{gain.work_s / 3600:,.0f}</td>"
        cells = row(gain.name, waits, _shown, min((wait for wait in waits if wait >= 0), default=None))
        body += cells.replace("</td>", f"</td>{counts}", 1)
    more = f" Shown are the {SHOWN} of {len(gains)} that used most." if len(gains) > SHOWN else ""
    about = f"The mean wait of their jobs. The best of a row is marked.{more}"
    return section(TITLES[kind], about, f"<table><tr>{head}</tr>{body}</table>")


def _shown(seconds: float) -> str:
    return "none started" if seconds < 0 else span(seconds)
