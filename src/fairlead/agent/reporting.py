"""What an agent has to report: in batches, and again and again until the server has confirmed it."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from fairlead.agent.entries import Entry, Key, Meta
from fairlead.agent.launching import flat_of
from fairlead.wire.agent import Report, State, Tasks

STATES: dict[str, State] = {
    "stopped": "stopped",
    "returned": "stopped",
    "refused": "refused",
    "lost": "lost",
    "failed": "failed",
    "signal": "failed",
}
MOST_REPORTS = 400
"""In one batch."""
MOST_UNCONFIRMED = 800
"""Reports under way at a time. The server takes 1,000 of a node."""
MOST_PROMPT = 4
"""Tasks whose begin is reported at once, until the server has confirmed it. In a flood the others wait a little, and
while some wait there are no more than so many each time they are looked at: to the server a few begins are a cycle."""


class Batch(msgspec.Struct, frozen=True):
    """Reports that were sent: those of ends are over when they are confirmed."""

    reports: int
    ended: tuple[Key, ...]
    prompt: int


class Reporting:
    def __init__(self) -> None:
        self._news: dict[Key, Entry] = {}
        """What is to be reported, in order."""
        self._young: list[Entry] = []
        """Tasks that have just begun beside many others. Most will have ended before anybody needs to know."""
        self._grown = 0
        self._prompt = 0
        """Begins that were reported at once and are not confirmed; in a flood, since those who wait were looked at."""
        self._unsent_prompt = 0
        self._answers: list[Report] = []
        """Reports of tasks that are not known here."""
        self._batches: dict[int, Batch] = {}
        self._unconfirmed = 0
        self._number = 0

    def tell(self, entry: Entry) -> None:
        """Report the present state of a task. One of a chain, or of a flood, that has just begun can wait."""
        entry.told = False
        if entry.state == "running":
            if entry.waits or self._prompt >= MOST_PROMPT:
                self._young.append(entry)
                return
            self._prompt += 1
            self._unsent_prompt += 1
        self._news[entry.key] = entry

    def answer(self, report: Report) -> None:
        self._answers.append(report)

    def grow_up(self) -> None:
        """Called now and then: what has begun before the last time, and still runs, is news."""
        for entry in self._young[: self._grown]:
            if entry.state == "running" and not entry.told:
                self._news[entry.key] = entry
        del self._young[: self._grown]
        self._grown = len(self._young)
        self._prompt = 0

    @property
    def has_young(self) -> bool:
        return bool(self._young)

    @property
    def has_news(self) -> bool:
        return bool(self._news or self._answers) and self._unconfirmed < MOST_UNCONFIRMED

    @property
    def is_settled(self) -> bool:
        """True if all that happened was reported, and the server has confirmed it."""
        return not (self._news or self._young or self._answers or self._batches)

    def reconnected(self, known: Iterable[Entry]) -> None:
        """A new connection: nothing that was sent before counts. What runs is told by the greeting."""
        self._batches.clear()
        self._unconfirmed = self._prompt = self._unsent_prompt = 0
        self._answers.clear()
        self._news.clear()
        for entry in known:
            entry.told = entry.state == "running"
            if entry.state == "ended":
                self._news[entry.key] = entry

    def batch(self) -> tuple[int, tuple[Report, ...]]:
        """The next batch and its number, by which it will be confirmed."""
        reports, self._answers = self._answers[:MOST_REPORTS], self._answers[MOST_REPORTS:]
        groups: dict[tuple[Meta, str, int, str], list[Entry]] = {}
        taken: list[Key] = []
        for key, entry in self._news.items():
            if len(groups) + len(reports) >= MOST_REPORTS:
                break
            taken.append(key)
            if entry.told:
                continue
            entry.told = True
            result = entry.result
            of = ("running", 0, "") if result is None else (result[0], result[1], result[2])
            groups.setdefault((entry.meta, *of), []).append(entry)
        for key in taken:
            del self._news[key]
        ended: list[Key] = []
        for (meta, how, code, why), entries in groups.items():
            reports.append(_report(meta, how, code, why, entries))
            if how != "running":
                ended += [entry.key for entry in entries]
        self._number += 1
        self._batches[self._number] = Batch(len(reports), tuple(ended), self._unsent_prompt)
        self._unsent_prompt = 0
        self._unconfirmed += len(reports)
        return self._number, tuple(reports)

    def confirmed(self, number: int) -> tuple[Key, ...]:
        """The server has made a batch durable. Which ends it had: they need not be known any longer."""
        batch = self._batches.pop(number, None)
        if batch is None:
            return ()
        self._unconfirmed -= batch.reports
        if not self._young:
            self._prompt = max(0, self._prompt - batch.prompt)
        return batch.ended


def _report(meta: Meta, how: str, code: int, why: str, entries: list[Entry]) -> Report:
    tasks = Tasks(*meta, flat_of([entry.key[3] for entry in entries]))
    if how == "running":
        return Report(tasks, "running")
    entries.sort(key=lambda entry: entry.key[3])
    results = [entry.result for entry in entries if entry.result is not None]
    state: State = STATES[how] if how != "exit" else "failed" if code else "succeeded"
    killed = how == "signal"
    return Report(
        tasks,
        state,
        exit_code=None if how in ("returned", "refused", "lost") else code + 128 if killed else code,
        signal=code if killed else 0,
        reason=why or (f"ended by {_signal_name(code)}" if killed else ""),
        ran=tuple(result[3] for result in results),
        cpu=tuple(result[4] for result in results),
        memory=tuple(result[5] for result in results),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
