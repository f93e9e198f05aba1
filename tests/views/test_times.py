"""Views are true at the time of the request, also when nothing has changed for a long time."""

from __future__ import annotations

import re
import time
from pathlib import Path

from fairlead.core.resources import HOUR, SECOND, format_moment
from fairlead.core.why.reasons import NoCapacity
from fairlead.testing import World
from fairlead.views.answers import hold_answers
from fairlead.views.loan_answers import loan_answers
from fairlead.views.pool_answers import pool_answers
from tests.http.serving import JOB, serving, submit
from tests.until import until


def test_a_pause_that_is_over_is_not_shown() -> None:
    """Nothing is ordered any more for the job, so the end of the pause changes nothing."""
    w = World({"max_orders": 1, "pool_pause": "1min"})
    w.pool("p", node={"cpu": 1}, max=3)
    job = w.submit(stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    w.fail_order("p")
    w.advance(30)

    def paused() -> tuple[tuple[str, ...], float | None]:
        reason = w.explain(job)[0].reason
        assert isinstance(reason, NoCapacity) and reason.given_up
        partition = w.partition()
        (answer,) = pool_answers(partition, partition.pools.values(), lambda job: True, w.now)
        return reason.paused, answer.paused_until

    assert paused() == (("p",), 60)
    before = w.partition().now
    w.advance(60)
    assert w.partition().now == before
    assert paused() == ((), None)


def test_a_live_hold_grows_older_while_nothing_happens(tmp_path: Path) -> None:
    with serving(tmp_path, {"partitions": {"default": {"starving_after": "1ms"}}}) as site:
        site.node("n1", cpu=1)
        first = submit(site.as_owner)
        site.report(first, "running")
        submit(site.as_owner, JOB)

        def age() -> float:
            found = re.search(r"^fairlead_hold_age_seconds{.*} (.*)$", site.as_owner.get("/metrics").text, re.MULTILINE)
            return float(found[1]) if found else 0.0

        until(age)
        seq = site.control.find().writer.seq
        before = age()
        time.sleep(0.3)
        assert age() >= before + 0.3
        assert site.control.find().writer.seq == seq


def test_the_end_of_a_hold_is_later_when_the_server_was_away() -> None:
    """`hold_for` counts from ready on, and explanations and lists show that time."""
    w = World({"starving_after": "1s", "hold_for": "1h"})
    w.now = 1_790_000_000 * SECOND  # as with a clock that counts from 1970
    w.node("n1", cpu=1)
    w.submit(name="first", stages=[{"name": "w", "resources": {"cpu": 1}}])
    w.cycle()
    for name in ("second", "third"):
        w.submit(name=name, stages=[{"name": "w", "resources": {"cpu": 1 if name == "second" else 0.5}}])
    w.advance(2)
    w.restart(ready=False, away=7200)
    w.cycle()
    w.mark_ready()
    w.cycle()
    (hold,) = hold_answers(w.partition(), lambda job: True, w.now)
    assert hold.until == w.now / SECOND + 3600
    assert f"held for job second, stage w (until {format_moment(w.now + HOUR)})" in str(w.explain("third")[0].reason)


def test_loans_that_return_at_one_time_on_several_nodes_are_one_step() -> None:
    w = World({"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}})
    w.nodes(4, cpu=2)
    w.submit(queue="root.a", stages=[{"array": 6, "resources": {"cpu": 1}, "time_limit": "1h"}])
    w.submit(queue="root.a", stages=[{"array": 1, "resources": {"cpu": 1}}])
    w.cycle()
    (loan,) = loan_answers(w.partition(), w.now)
    assert loan.percent == 37.5 and loan.unknown_percent == 0
    assert [(step.at, step.percent) for step in loan.returns] == [(3600, 37.5)]


def test_nodes_that_are_set_aside_for_an_owner_have_no_end() -> None:
    w = World({"queues": {"root": {"mine": {"share": 50}, "theirs": {"share": 50}}}, "starving_after": "1h"})
    w.nodes(2, cpu=2)
    w.submit(queue="root.theirs", stages=[{"array": 4, "resources": {"cpu": 1}, "duration": "1h"}])
    w.cycle()
    w.submit(name="gang", queue="root.mine", stages=[{"name": "w", "resources": {"cpu": 2}}])
    w.advance(5)
    assert w.holds()
    w.submit(name="late", queue="root.theirs", stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    (hold,) = hold_answers(w.partition(), lambda job: True, w.now)
    assert hold.until is None
    assert "1 node is held for job gang, stage w;" in f"{w.explain('late')[0].reason};"
