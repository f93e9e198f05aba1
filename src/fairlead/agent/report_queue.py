"""The reports of an agent: sent in batches, and repeated until the server confirms them."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Literal, NamedTuple

from fairlead.agent.spawner.records import Key, Meta, Result, Spec
from fairlead.wire.agent_messages import Report, State, Tasks
from fairlead.wire.index_spans import spans_of

STATES: dict[str, State] = {
    "stopped": "stopped",
    "returned": "stopped",
    "refused": "refused",
    "lost": "lost",
    "failed": "failed",
    "signal": "failed",
}
MAX_REPORTS = 400
"""Largest number of reports in one batch."""
MAX_UNCONFIRMED = 800
"""Largest number of unconfirmed reports. The server accepts 1,000 per node."""
MAX_PROMPT = 4
"""Starts to report at once; further starts wait for the next check. Even a few starts cost the server a cycle."""


class Entry:
    """The agent's record of one attempt of a task, from its launch until the server has confirmed its end."""

    __slots__ = ("at", "began", "chain", "key", "meta", "own", "result", "spec", "state", "told", "waits")

    def __init__(self, key: Key, meta: Meta, at: int, chain: int) -> None:
        self.key = key
        self.meta = meta
        self.at = at
        """The number of the spawner that runs the task."""
        self.chain = chain
        self.waits = False
        """True if the task waits for a free slot of its chain."""
        self.began = 0.0
        """When the task started, by the clock of the task table; 0 before."""
        self.state: Literal["sent", "running", "ended"] = "sent"
        self.told = False
        """True if the current state has been reported to the server."""
        self.result: Result | None = None
        self.spec: Spec | None = None
        self.own: dict[str, str] | None = None
        """The variables of this task only."""


class Batch(NamedTuple):
    reports: int
    ended: tuple[Key, ...]
    """Tasks to drop once the batch is confirmed."""
    prompt: int
    """Starts that were reported at once."""


class Reporting:
    def __init__(self) -> None:
        self._news: dict[Key, Entry] = {}
        """Tasks to report, in order."""
        self._young: list[Entry] = []
        """Started tasks whose report can wait: most end before it is due."""
        self._grown = 0
        """The number of these tasks that started before the last check."""
        self._prompt = 0
        """Starts that were reported at once since the last check and are not confirmed."""
        self._unsent_prompt = 0
        self._answers: list[Report] = []
        """Reports about tasks that the agent does not have."""
        self._batches: dict[int, Batch] = {}
        self._unconfirmed = 0
        self._number = 0

    def report(self, entry: Entry) -> None:
        """Report the present state of a task. Starts of chained tasks, and of many tasks, are reported later."""
        entry.told = False
        if entry.state == "running":
            if entry.waits or self._prompt >= MAX_PROMPT:
                self._young.append(entry)
                return
            self._prompt += 1
            self._unsent_prompt += 1
        self._news[entry.key] = entry

    def answer(self, report: Report) -> None:
        self._answers.append(report)

    def report_long_runs(self) -> None:
        """Report tasks that started before the last call and still run. Called at regular intervals."""
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
        return bool(self._news or self._answers) and self._unconfirmed < MAX_UNCONFIRMED

    @property
    def is_settled(self) -> bool:
        """True if all changes were reported and confirmed by the server."""
        return not (self._news or self._young or self._answers or self._batches)

    def reconnected(self, entries: Iterable[Entry]) -> None:
        """Report all ended tasks again on a new connection. Running tasks are listed in `Hello`."""
        self._batches.clear()
        self._unconfirmed = self._prompt = self._unsent_prompt = 0
        self._answers.clear()
        self._news.clear()
        for entry in entries:
            entry.told = entry.state == "running"
            if entry.state == "ended":
                self._news[entry.key] = entry

    def batch(self) -> tuple[int, tuple[Report, ...]]:
        """Return the next batch of reports and its number, which the server's confirmation will name."""
        reports, self._answers = self._answers[:MAX_REPORTS], self._answers[MAX_REPORTS:]
        groups: dict[tuple[Meta, str, int, str, bool], list[Entry]] = {}
        taken: list[Key] = []
        for key, entry in self._news.items():
            if len(groups) + len(reports) >= MAX_REPORTS:
                break
            taken.append(key)
            if entry.told:
                continue
            entry.told = True
            result = entry.result
            outcome = ("running", 0, "", False) if result is None else (*result[:3], bool(result[6:]))
            groups.setdefault((entry.meta, *outcome), []).append(entry)
        for key in taken:
            del self._news[key]
        ended: list[Key] = []
        for (meta, how, code, why, collected), entries in groups.items():
            reports.append(_report(meta, how, code, why, collected, entries))
            if how != "running":
                ended += [entry.key for entry in entries]
        self._number += 1
        self._batches[self._number] = Batch(len(reports), tuple(ended), self._unsent_prompt)
        self._unsent_prompt = 0
        self._unconfirmed += len(reports)
        return self._number, tuple(reports)

    def confirmed(self, number: int) -> tuple[Key, ...]:
        """Return the ended tasks of a confirmed batch, which can be dropped."""
        batch = self._batches.pop(number, None)
        if batch is None:
            return ()
        self._unconfirmed -= batch.reports
        if not self._young:
            self._prompt = max(0, self._prompt - batch.prompt)
        return batch.ended


def _report(meta: Meta, how: str, code: int, why: str, collected: bool, entries: list[Entry]) -> Report:
    tasks = Tasks(*meta, spans_of([entry.key[3] for entry in entries]))
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
        results=collected,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
