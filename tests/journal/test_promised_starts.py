"""The ledger of promised starts: what is kept, what is scored, and how intervals follow the scores."""

from collections.abc import Iterator
from math import exp
from pathlib import Path
from random import Random

import pytest

from fairlead.core.resources import MINUTE, SECOND
from fairlead.history.promised_starts import Promise, PromisedStarts, stretch_of
from fairlead.history.recorder import HistoryRecorder
from fairlead.history.store import History
from fairlead.journal.in_memory import MemoryJournal
from fairlead.testing import World


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    opened = History(tmp_path / "history")
    yield opened
    opened.close()


class Ledger:
    def __init__(self, history: History, journal: MemoryJournal | None = None) -> None:
        self.history = history
        self.promised = PromisedStarts(history)
        self.w = World(observers=[self.promised, HistoryRecorder(history)], journal=journal)

    def wait(self, number: int = 1, **fields: object) -> list[str]:
        """Submit a job that runs for a minute, and jobs that wait for it and for each other."""
        if not self.w.partition().nodes.rows:
            self.w.node("n", cpu=1)
        stage = {"name": "s", "resources": {"cpu": 1}, "duration": 60}
        jobs = [self.w.submit(name="j", user="ann", stages=[stage], **fields) for _ in range(number + 1)]
        self.w.cycle()
        return jobs[1:]

    def promise(self, job: str, earliest: int, likely: int, latest: int) -> None:
        now = self.w.now
        numbers = self.promised.expect(self.w.partition(), [job])
        seconds = [now + each * SECOND for each in (likely, earliest, latest)]
        self.promised.note("default", numbers.values(), dict.fromkeys(numbers.values(), Promise(now, *seconds)))

    def results(self, last: bool = False) -> dict[str, int]:
        self.history.flush()
        return dict(self.promised.figures("default", 0, last).results)


def test_promises_are_scored_when_jobs_start(history: History) -> None:
    ledger = Ledger(history)
    one, two, three = ledger.wait(3)
    ledger.promise(one, 50, 55, 70)
    ledger.promise(two, 10, 20, 30)
    ledger.promise(three, 200, 300, 400)
    assert ledger.promised.open == 3 and ledger.results() == {}
    ledger.w.advance(200)
    assert ledger.results() == {"kept": 1, "later": 1, "earlier": 1}
    figures = ledger.promised.figures("default", 0)
    assert figures.scored == 3 and figures.median_error == 100 * SECOND and ledger.promised.open == 0


def test_first_and_last_promises_count_apart(history: History) -> None:
    ledger = Ledger(history)
    (job,) = ledger.wait()
    ledger.promise(job, 10, 20, 30)
    ledger.w.advance(30)
    ledger.promise(job, 0, 1, 2)  # too soon after the first one to be written
    ledger.w.now += 31 * SECOND
    ledger.promise(job, 0, 0, 1)
    ledger.w.cycle()
    ledger.w.advance(1)
    assert ledger.results() == {"later": 1} and ledger.results(last=True) == {"kept": 1}


def test_changed_and_killed_jobs_are_not_scored(history: History) -> None:
    ledger = Ledger(history)
    one, two, three = ledger.wait(3)
    for job in (one, two, three):
        ledger.promise(job, 0, 100, 1_000)
    ledger.w.kill(one)
    ledger.w.update_job(two, resources={"cpu": "500m"}, stage="s")
    ledger.w.hold(three)
    ledger.w.advance(300)
    assert ledger.results() == {"ended": 1, "changed": 2}
    assert ledger.promised.figures("default", 0).median_error is None


def test_a_start_while_the_answer_is_computed(history: History) -> None:
    ledger = Ledger(history)
    (job,) = ledger.wait()
    made = ledger.w.now
    numbers = ledger.promised.expect(ledger.w.partition(), [job])
    ledger.w.advance(100)
    promise = Promise(made, made + 60 * SECOND, made + 50 * SECOND, made + 70 * SECOND)
    ledger.promised.note("default", numbers.values(), {numbers[job]: promise})
    assert ledger.results() == {"kept": 1} and ledger.promised.open == 0
    assert ledger.promised.expect(ledger.w.partition(), [job]) == {}


def test_no_answer_leaves_nothing(history: History) -> None:
    ledger = Ledger(history)
    (job,) = ledger.wait()
    numbers = ledger.promised.expect(ledger.w.partition(), [job])
    ledger.promised.note("default", numbers.values(), {})
    assert not ledger.promised._open


def test_promises_survive_a_restart(history: History) -> None:
    """The start was in a record that the history had not reached: a new leader replays it."""
    journal = MemoryJournal()
    ledger = Ledger(history, journal)
    (job,) = ledger.wait()
    ledger.promise(job, 50, 60, 70)
    history.flush()
    ledger.w._observers = ledger.w.cluster.writers["default"]._observers = []  # the rest is lost
    ledger.w.advance(100)
    after = PromisedStarts(history)
    World(observers=[after, HistoryRecorder(history)], journal=journal)
    history.flush()
    assert after.figures("default", 0).results == {"kept": 1} and after.open == 0
    again = PromisedStarts(history)
    World(observers=[again], journal=journal)
    assert list(again._scores["default"]) == list(after._scores["default"]) != []


def test_stretching_an_interval() -> None:
    promise = Promise(0, 10 * MINUTE, 5 * MINUTE, 20 * MINUTE)
    assert promise.stretched(1) == promise
    wide, narrow = promise.stretched(2), promise.stretched(0.5)
    assert wide.earliest < promise.earliest < narrow.earliest < promise.likely == wide.likely
    assert wide.latest and narrow.latest and promise.latest and wide.latest > promise.latest > narrow.latest
    # A start at the edge of the stretched interval has the factor as its score, with either promise.
    assert promise.score(wide.latest) == pytest.approx(2, abs=1e-6) == wide.score(wide.latest)
    assert promise.score(20 * MINUTE) == 1
    assert promise.stretched(100).earliest == 0
    assert Promise(0, 10, 5, None).stretched(2).latest is None and Promise(0, 10, 5, None).score(9) is None


def test_few_scores_change_nothing() -> None:
    assert stretch_of([3.0] * 19) == 1 and stretch_of([3.0] * 20) == 3
    assert stretch_of([1e9] * 50) == 20 and stretch_of([0.0] * 50) == 0.2


@pytest.mark.parametrize("width", [0.3, 1.0, 3.0])
def test_coverage_moves_to_90_percent(width: float) -> None:
    """A model whose intervals are too narrow or too wide by a factor, and a load that doubles in the middle."""
    rng = Random(7)
    scores: list[float] = []
    kept, raw = [], []
    for number in range(6_000):
        spread = 0.5 if number < 3_000 else 1.0
        start = round(30 * MINUTE * exp(rng.gauss(0, spread)))
        low, high = (round(30 * MINUTE * exp(side * 1.645 * 0.5 * width)) for side in (-1, 1))
        simulated = Promise(0, 30 * MINUTE, low, high)
        promise = simulated.stretched(stretch_of(scores[-200:]))
        raw.append(simulated.result(start) == "kept")
        kept.append(promise.result(start) == "kept")
        score = promise.score(start)
        assert score is not None and score == pytest.approx(simulated.score(start))
        scores.append(score)
    for first in (500, 3_500):
        assert 0.88 < sum(kept[first : first + 2_500]) / 2_500 < 0.92
    assert not 0.88 < sum(raw[3_500:]) / 2_500 < 0.92
