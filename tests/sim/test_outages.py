"""Traces on nodes that fail and come back."""

from __future__ import annotations

import gc

import pytest
import yaml

from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.core.resources import DAY, HOUR, MINUTE, SECOND
from fairlead.sim.batch import Faults, run_policies
from fairlead.sim.machines import PROFILES, Outages, Profile
from fairlead.sim.policy_files import NAMED
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace
from fairlead.sim.traces.own import read_document


def of(text: str) -> Trace:
    return read_document(yaml.safe_load(text), "text", "extend")


WEEK = of("nodes: [{name: n, count: 4, resources: {cpu: 8}}]\ngenerate: {jobs: 80, load: 70}")


class Planned(Outages):
    """Trouble by hand."""

    def __init__(self, *events: tuple[int, str, str]) -> None:
        super().__init__([], Profile(1, 1), 0)
        self._due = sorted(events)  # type: ignore[arg-type]

    def _plan(self, now: int, node: str) -> None:
        pass

    def _draw(self, mean: int) -> int:
        return 60 * SECOND


def test_what_runs_on_a_node_that_fails_runs_again_elsewhere() -> None:
    trace = of(
        """
        nodes: [{name: a, resources: {cpu: 2}}, {name: b, resources: {cpu: 2}}]
        jobs: [{id: x, stages: [{count: 2, resources: {cpu: 1}, duration: 100s}]}]
        """
    )
    simulation = Simulation(trace, NAMED["fcfs"](trace), Planned((30 * SECOND, "a", "fails")))
    assert simulation.run()
    job = simulation.record.job(0)
    assert (job.started, job.ended, job.state) == (0, 130 * SECOND, "succeeded")


def test_a_node_that_is_back_takes_work_again() -> None:
    trace = of("nodes: [{name: a, resources: {cpu: 2}}]\njobs: [{id: x, stages: [{duration: 100s}]}]")
    simulation = Simulation(trace, NAMED["fcfs"](trace), Planned((30 * SECOND, "a", "fails")))
    assert simulation.run() and simulation.record.job(0).ended == 190 * SECOND


def test_a_node_that_refuses_is_left_alone_for_a_while() -> None:
    trace = of("nodes: [{name: a, resources: {cpu: 2}}]\njobs: [{id: x, submit: 5s, stages: [{duration: 1s}]}]")
    outages = Planned((0, "a", "refuses"))
    simulation = Simulation(trace, NAMED["fcfs"](trace), outages)
    assert simulation.run()
    job = simulation.record.job(0)
    # Refused at 5, 6, 8, 12, 20 and 36 s; the node takes launches again from 60 s on, and is tried at 68 s.
    assert (job.state, outages.count, job.ended) == ("succeeded", 1, 69 * SECOND)


def test_jobs_that_can_never_start_do_not_wait_for_the_next_trouble() -> None:
    trace = of(
        "nodes: [{name: a, resources: {cpu: 2}}]\n"
        "jobs: [{id: x, stages: [{count: 3, resources: {cpu: 1}, duration: 1s}]}]"
    )
    simulation = Simulation(trace, NAMED["fcfs"](trace), Outages(["a"], PROFILES["heavy"], 1))
    assert simulation.run() and simulation.record.job(0).state == "waiting"


def test_every_job_ends_and_the_state_is_sound() -> None:
    outages = Outages([name for name, _ in WEEK.nodes], Profile(HOUR, 10 * MINUTE, refusing=20), seed=5)
    simulation = Simulation(WEEK, NAMED["easy"](WEEK), outages)
    assert simulation.run(stop=lambda run: check_all(run.writer.partition) is not None)
    assert simulation.record.is_over and outages.count > 20


def test_the_same_trouble_for_each_policy() -> None:
    before = gc.get_threshold()
    runs = run_policies(WEEK, [NAMED["fcfs"](WEEK)] * 2, None, lambda _: False, Faults("heavy", seed=3))
    first, second = (run.result for run in runs)
    assert first["starts_sha256"] == second["starts_sha256"] and first["outages"] == second["outages"] > 0
    assert gc.get_threshold() == before and not gc.get_freeze_count()
    with pytest.raises(Refused, match="there is no profile stormy; write light or heavy"):
        run_policies(WEEK, [NAMED["fcfs"](WEEK)], None, lambda _: False, Faults("stormy"))


def test_trouble_comes_as_often_as_the_profile_says() -> None:
    outages = Outages(["a", "b"], Profile(DAY, HOUR, refusing=50), seed=2)
    seen = [what for day in range(400) for _, what in outages.happen(day * DAY)]
    assert 600 < seen.count("fails") + seen.count("refuses") < 900
    assert 0.4 < seen.count("refuses") / (seen.count("fails") + seen.count("refuses")) < 0.6
    assert abs(seen.count("fails") - seen.count("returns")) <= 2
