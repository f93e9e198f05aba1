"""The simulation: for any log, the schedule of an oracle; and unusual jobs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.core.model import JobSpec, StageSpec
from fairlead.core.resources import MINUTE, SECOND
from fairlead.sim.figures import figures, percentile, started_jobs
from fairlead.sim.policy_files import NAMED, policy_of
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import LeftOut, Trace
from fairlead.sim.traces.own import read_document
from fairlead.sim.traces.trace import Arrival, cpu_node
from tests.sim import oracle

MACHINE = 8


def trace_of(jobs: oracle.Jobs, nodes: tuple[int, ...] = (MACHINE,)) -> Trace:
    arrivals = []
    for number, (submit, run, processors, estimate) in enumerate(jobs):
        stage = StageSpec("main", processors, 0, (("cpu", 1000),), estimate=estimate * SECOND)
        spec = JobSpec(f"j{number}", f"u{number % 3}", "", (stage,))
        arrivals.append(Arrival(submit * SECOND, str(number), spec, (run * SECOND,)))
    named = [(f"n{at}", cpu_node(cpus)) for at, cpus in enumerate(nodes)]
    return Trace("drawn", arrivals, named, LeftOut())


def simulated(trace: Trace, policy: str = "fcfs", check: bool = False) -> Simulation:
    simulation = Simulation(trace, NAMED[policy](trace))

    def look(running: Simulation) -> bool:
        if check:
            check_all(running.writer.partition)
        return False

    assert simulation.run(stop=look)
    return simulation


def starts(simulation: Simulation) -> list[int]:
    return [each.start // SECOND for each in started_jobs(simulation.record)]


def of(text: str) -> Trace:
    return read_document(yaml.safe_load(text), "text", "extend")


one_job = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(1, MACHINE), st.integers(0, 4))


@st.composite
def logs(draw: st.DrawFn) -> oracle.Jobs:
    """Gaps between arrivals, run times and what is added to them as estimates; all are small, so that times meet."""
    jobs: oracle.Jobs = []
    now = 0
    for gap, run, processors, more in draw(st.lists(one_job, min_size=1, max_size=25)):
        now += gap
        jobs.append((now, run, processors, run + more))
    return jobs


@given(logs())
@settings(max_examples=150, deadline=None)
def test_fcfs_is_the_oracles(jobs: oracle.Jobs) -> None:
    assert starts(simulated(trace_of(jobs), check=True)) == oracle.fcfs(jobs, MACHINE)


@given(logs())
@settings(max_examples=150, deadline=None)
def test_easy_is_the_oracles(jobs: oracle.Jobs) -> None:
    assert starts(simulated(trace_of(jobs), "easy", check=True)) == oracle.easy(jobs, MACHINE)


@given(logs(), st.sampled_from([(4, 4), (1,) * 8, (5, 2, 1)]))
@settings(max_examples=50, deadline=None)
def test_tasks_of_one_cpu_do_not_mind_on_how_many_nodes(jobs: oracle.Jobs, nodes: tuple[int, ...]) -> None:
    assert starts(simulated(trace_of(jobs, nodes))) == oracle.fcfs(jobs, MACHINE)


@given(logs(), st.sampled_from(sorted(NAMED)))
@settings(max_examples=50, deadline=None)
def test_every_job_ends_under_every_policy(jobs: oracle.Jobs, policy: str) -> None:
    record = simulated(trace_of(jobs), policy, check=True).record
    assert record.is_over and record.started == record.arrived == len(jobs)
    for at, (submit, run, _, _) in enumerate(jobs):
        job = record.job(at)
        assert job.state == "succeeded" and job.started is not None and job.ended is not None
        assert job.started >= submit * SECOND and job.ended - job.started == run * SECOND


def test_a_job_of_no_length_ends_in_a_second_cycle_at_that_instant() -> None:
    # Both want the whole machine: the second starts when the first has ended, which is at once.
    jobs = [(3, 0, MACHINE, 0), (3, 5, MACHINE, 5)]
    assert starts(simulated(trace_of(jobs))) == [3, 3]


def test_what_ends_makes_room_for_what_arrives_at_that_instant() -> None:
    jobs = [(0, 5, MACHINE, 5), (5, 1, MACHINE, 1)]
    simulation = simulated(trace_of(jobs))
    assert starts(simulation) == [0, 5]


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_simulated_jobs_get_no_holds_however_long_they_wait(policy: str) -> None:
    day = 86_400
    jobs = [(0, 9 * day, 5, 9 * day), (1, day, 8, day), *((at * day, day, 3, day) for at in range(1, 9))]
    assert starts(simulated(trace_of(jobs), policy)) == (oracle.easy if policy == "easy" else oracle.fcfs)(
        jobs, MACHINE
    )


def test_it_may_be_stopped_and_go_on() -> None:
    jobs = [(at, 7, 3, 9) for at in range(30)]
    simulation = Simulation(trace_of(jobs), NAMED["fcfs"](trace_of(jobs)))
    cycles = 0

    def now_and_then(running: Simulation) -> bool:
        nonlocal cycles
        cycles += 1
        return cycles % 7 == 0

    stops = 0
    while not simulation.run(stop=now_and_then):
        stops += 1
    assert stops > 5 and starts(simulation) == oracle.fcfs(jobs, MACHINE)


def test_until() -> None:
    jobs = [(0, 10, MACHINE, 10), (5, 10, MACHINE, 10), (50, 1, 1, 1)]
    simulation = Simulation(trace_of(jobs), NAMED["fcfs"](trace_of(jobs)))
    assert simulation.run(until=15 * SECOND)
    result = figures(simulation.record, "fcfs", 1.0)
    assert (result["jobs"], result["submitted"], result["not_started"], result["not_ended"]) == (2, 2, 0, 1)
    assert [simulation.record.job(at).state for at in range(3)] == ["succeeded", "running", "waiting"]
    assert simulation.run() and starts(simulation) == [0, 10, 50]


def test_the_same_again() -> None:
    jobs = [(at // 3, at % 7, 1 + at % 5, at % 7) for at in range(60)]
    first, second = (simulated(trace_of(jobs), "fair") for _ in range(2))
    assert first.record.times == second.record.times and starts(first) == starts(second)
    assert first.writer.seq == second.writer.seq


def test_many_stages_and_jobs_after_others() -> None:
    trace = of(
        """
        nodes: [{name: n, resources: {cpu: 4}}]
        jobs:
          - id: a
            submit: 10s
            stages:
              - {name: x, duration: 5min, resources: {cpu: 1}}
              - {name: y, count: 3, duration: 1min, resources: {cpu: 1}}
          - {id: b, submit: 10s, after: [a], stages: [{duration: 1min, resources: {cpu: 4}}]}
          - {id: c, submit: 20s, stages: [{count: 10, min: 1, duration: 10s, resources: {cpu: 1}}]}
        """
    )
    record = simulated(trace, check=True).record
    begun = {each.id: (record.job(at).started, record.job(at).ended) for at, each in enumerate(trace.arrivals)}
    assert begun["a"] == (10 * SECOND, 10 * SECOND + 5 * MINUTE)
    assert begun["b"] == (10 * SECOND + 5 * MINUTE, 10 * SECOND + 6 * MINUTE)
    # Three at a time from when the stage of a minute has ended.
    assert begun["c"] == (10 * SECOND + MINUTE, 10 * SECOND + MINUTE + 40 * SECOND)


def test_jobs_that_are_refused_or_never_start() -> None:
    trace = of(
        """
        nodes: [{name: n, resources: {cpu: 4}}]
        jobs:
          - {id: odd, stages: [{duration: 1s, resources: {fpga: 1}}]}
          - {id: large, stages: [{duration: 1s, resources: {cpu: 5}}]}
          - {id: late, submit: 5s, stages: [{duration: 1s, resources: {cpu: 1}}]}
        """
    )
    simulation = simulated(trace)
    result = figures(simulation.record, "fcfs", 1.0)
    assert (result["jobs"], result["submitted"], result["not_started"]) == (1, 3, 1)
    assert [simulation.record.job(at).state for at in range(3)] == ["refused", "waiting", "succeeded"]
    (refusal,) = result["refused"]
    assert (refusal["count"], refusal["jobs"]) == (1, ["odd"]) and "no node or pool offers it" in refusal["why"]


# -- policies ----------------------------------------------------------------------------------------------------


def queues_used(simulation: Simulation) -> list[str]:
    return [simulation.record.job(at).queue for at in range(simulation.record.arrived)]


def test_queues_of_a_trace_count_where_the_policy_has_them() -> None:
    trace = of(
        """
        nodes: [{name: n, resources: {cpu: 4}}]
        jobs:
          - {queue: q1, user: ann, stages: [{duration: 1s}]}
          - {queue: root.q1, user: ann, stages: [{duration: 1s}]}
          - {queue: q2, user: ann, stages: [{duration: 1s}]}
          - {user: bob, stages: [{duration: 1s}]}
        """
    )
    document: dict[str, Any] = {
        "queues": {"root": {"q1": {}, "rest": {}}},
        "requestors": [{"match": "^bob$", "queue": "root.q1"}, {"match": "", "queue": "root.rest"}],
    }
    for given_document in (document, {"partitions": {"default": document}}):
        simulation = Simulation(trace, policy_of("mine", given_document))
        simulation.run()
        assert queues_used(simulation) == ["root.q1", "root.q1", "root.rest", "root.q1"]


def test_jobs_may_be_forgotten_at_once() -> None:
    trace = of(
        """
        nodes: [{name: n, resources: {cpu: 4}}]
        jobs: [{id: a, stages: [{duration: 1s}]}, {id: b, submit: 9s, stages: [{count: 4, duration: 1s}]}]
        """
    )
    simulation = Simulation(trace, policy_of("mine", {"keep_ended": 0}))
    assert simulation.run() and simulation.record.is_over
    assert simulation.record.job(1).ended == 10 * SECOND and simulation.record.job(1).state == "succeeded"


def test_fair_has_a_queue_for_each_user() -> None:
    trace = of(
        """
        nodes: [{name: n, resources: {cpu: 4}}]
        jobs: [{user: ann.lee, stages: [{duration: 1s}]}, {user: bob, stages: [{duration: 1s}]}]
        """
    )
    assert queues_used(simulated(trace, "fair")) == ["root.user-0", "root.bob"]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"partitions": {"a": {}, "b": {}}}, "partitions"),
        ({"queue": {}}, "partitions.default.queue"),
        (7, "configuration"),
    ],
)
def test_policies_that_cannot_be_read(document: object, field: str) -> None:
    with pytest.raises(Refused) as refusal:
        policy_of("mine", document)
    assert refusal.value.field == field


def test_nodes_are_refused_as_the_scheduler_would() -> None:
    trace = of("nodes: [{name: n, resources: {cpu: 4}}]\njobs: [{stages: [{duration: 1s}]}]")
    trace.nodes.append(("two words", trace.nodes[0][1]))
    with pytest.raises(Refused, match="is not a name"):
        Simulation(trace, NAMED["fcfs"](trace))


# -- figures -----------------------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    # Machine of 8. Job 0 runs 0-100 on 8; job 1 waits from 10 to 100 and runs 5 s on 4; job 2 starts beside it.
    jobs = [(0, 100, 8, 100), (10, 5, 4, 5), (20, 20, 4, 20)]
    result = figures(simulated(trace_of(jobs)).record, "fcfs", 2.0)
    assert {key: result[key] for key in ("jobs", "jobs_waiting", "sum_wait_s", "mean_wait_s", "median_wait_s")} == {
        "jobs": 3,
        "jobs_waiting": 2,
        "sum_wait_s": 170,
        "mean_wait_s": 56.666667,
        "median_wait_s": 80,
    }
    # (90 + 5) / 10 for the short one, (80 + 20) / 20 for the other, and 1.
    assert result["mean_bounded_slowdown_10s"] == round((1 + 9.5 + 5) / 3, 6)
    assert (result["p95_wait_s"], result["max_wait_s"], result["makespan_s"]) == (90, 90, 120)
    assert result["work_s"] == 800 + 20 + 80 and result["utilisation"] == round(900 / (8 * 120), 6)
    assert result["starts_sha256"] == "ae6b4654e66a37944a7763d2658da11f2ed1a3bd2fdd74a8171bbe03abb78015"
    assert result["queues"]["root.all"]["jobs"] == 3 and result["users"]["u1"]["mean_wait_s"] == 90.0
    assert (result["decisions"], result["tasks"], result["decisions_per_s"]) == (3, 16, 1.5)


def test_percentiles_are_by_nearest_rank() -> None:
    ordered = list(range(1, 21))
    assert [percentile(ordered, percent) for percent in (50, 95, 96, 100)] == [10, 19, 20, 20]
    assert percentile([5], 1) == 5 and percentile([], 50) == 0


def test_capacity_in_use_and_waiting_jobs_over_time() -> None:
    record = simulated(trace_of([(0, 10, 8, 10), (4, 2, 2, 2)])).record
    assert list(zip(record.times, record.used, record.waiting, strict=True)) == [
        (0, 8000, 0),
        (4 * SECOND, 8000, 1),
        (10 * SECOND, 2000, 0),
        (12 * SECOND, 0, 0),
    ]


def test_a_simulation_needs_no_file(tmp_path: Path) -> None:
    trace = of("nodes: [{name: n, count: 4, resources: {cpu: 8}}]\ngenerate: {jobs: 100}")
    assert simulated(trace, check=True).record.is_over
