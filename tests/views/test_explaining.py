"""One sentence about a job in every state, the typed reasons behind it, and remedies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fairlead.core.errors import Refused
from fairlead.core.why.reasons import HeldFor, NoCapacity
from fairlead.core.why.remedy_steps import (
    AddNodes,
    Block,
    EndTasks,
    MoveToFront,
    RaiseLimit,
    ReleaseHold,
    Remedy,
)
from fairlead.testing import World
from fairlead.views import outlook
from fairlead.views.causes import LastAttempt, RunsOn, Stopping

GPU_TASK = {"cpu": 1, "gpu": 4}


def stage(count: int = 1, minimum: int | None = None, **resources: object) -> dict[str, object]:
    least = {} if minimum is None else {"min": minimum}
    return {"name": "main", "count": count, "resources": resources or {"cpu": 1}, **least}


def texts(remedies: tuple[Remedy, ...]) -> list[str]:
    return [str(remedy) for remedy in remedies]


def test_no_node_with_24_gpus_is_a_remedy() -> None:
    w = World()
    w.nodes(3, gpu=8, cpu=32)
    w.submit(name="first", stages=[stage(3, gpu=8)])
    w.cycle()
    gang = w.submit(name="gang", stages=[stage(3, gpu=8)])
    w.cycle()
    assert "nodes with capacity for 3 tasks of 8 GPUs are added" in texts(w.why(gang).waiting[0].remedies)


def test_a_gang_waits_for_gpus_some_of_which_are_free() -> None:
    w = World()
    w.nodes(2, gpu=4, cpu=8)
    w.submit(name="small", stages=[stage(3, gpu=1)])
    w.cycle()
    gang = w.submit(name="gang", stages=[stage(8, gpu=1)])
    w.cycle()
    why = w.why(gang)
    assert (
        why.sentence == "job gang waits for 8 GPUs at once (8 tasks with 1 each): 5 are free on n0 and n1, enough for 5"
    )
    (waiting,) = why.waiting
    assert texts(waiting.remedies) == [
        "3 tasks of job small on n0 end",
        "it is submitted with 5 tasks",
        "a node with 3 GPUs is added",
    ]
    assert isinstance(waiting.remedies[0].steps[0], EndTasks)
    assert isinstance(waiting.remedies[2].steps[0], AddNodes)


def test_nodes_that_are_held_for_another_job() -> None:
    w = World({"starving_after": "30s"})
    w.nodes(2, cpu=8, gpu=4)
    w.submit(name="first", stages=[stage(1, **GPU_TASK)])
    w.cycle()
    w.submit(name="starving", stages=[stage(2, **GPU_TASK)])
    w.advance(100)
    late = w.submit(name="late", user="bob", stages=[stage(1, gpu=1)])
    w.cycle()
    why = w.why(late)
    assert why.sentence == (
        "job late waits for a node for 1 task: n1 and n0 are held for job starving, which has waited 100s"
    )
    assert Remedy((ReleaseHold("starving"),)) in why.waiting[0].remedies


def test_a_limit_along_the_path() -> None:
    w = World({"queues": {"root": {"ci": {"limit": {"cpu": 2}}}}})
    w.nodes(1, cpu=8)
    job = w.submit(queue="root.ci", stages=[stage(3, minimum=1)])
    w.cycle()
    why = w.why(job)
    assert why.sentence == (
        "job job waits: the limit of queue root.ci is 2 CPUs: 2 in use, 1 more needed; 2 tasks are starting on n0"
    )
    raised = RaiseLimit("root.ci", now=2000, resource="cpu", limit=3000)
    assert why.waiting[0].remedies == (Remedy((raised,)),)
    assert str(raised) == "the limit of queue root.ci is raised to 3 CPUs"


def test_a_job_behind_others() -> None:
    w = World()
    w.nodes(1, cpu=2)
    w.submit(name="first", stages=[stage(1, cpu=1)])
    w.cycle()
    w.submit(name="wide", stages=[stage(2, cpu=1)])
    last = w.submit(name="last", stages=[stage(1, cpu=1)])
    w.cycle()
    why = w.why(last)
    assert why.sentence == "job last waits behind 1 job (2 tasks) in queue root.default"
    assert why.waiting[0].remedies == (Remedy((MoveToFront("last", "main"),)),)


def test_jobs_that_come_first_and_requests_that_never_fit() -> None:
    w = World()
    w.nodes(1, cpu=2)
    w.submit(name="first", stages=[stage(2)])
    w.cycle()
    later = w.submit(name="later", after=["first"], stages=[stage(1)])
    never = w.submit(name="never", stages=[{**stage(1), "selectors": {"zone": "x"}}])
    w.cycle()
    assert w.why(later).sentence == "job later waits for job first"
    assert texts(w.why(later).waiting[0].remedies) == ["job first succeeds"]
    assert w.why(never).sentence == ("job never can never run as the cluster is now: no node has label zone=x")
    assert texts(w.why(never).waiting[0].remedies) == ["a node with 1 CPU and the label zone=x is added"]


def test_a_running_job_and_the_choice_of_its_nodes() -> None:
    w = World()
    w.nodes(2, cpu=2)
    w.node("g0", cpu=2, taints=["gpu"])
    job = w.submit(stages=[stage(2)])
    w.cycle()
    assert w.why(job).sentence == "job job is starting on n0"
    w.cycle()
    why = w.why(job)
    assert (
        why.sentence == "job job runs on n0, chosen by placement `pack` from the 2 of 3 nodes that can run such tasks"
    )
    assert why.causes == (RunsOn("main", 2, ("n0",), 1, "pack", 2, 3),)
    assert not why.waiting


def test_tasks_that_run_on_loan() -> None:
    w = World({"queues": {"root": {"own": {"share": 90}, "ads": {"share": 10}}}})
    w.nodes(1, cpu=4)
    few = w.submit(name="few", queue="root.own", stages=[stage(1)])
    many = w.submit(name="many", queue="root.ads", stages=[stage(3)])
    w.advance(1)
    assert w.why(few).sentence == "job few runs on n0, the only node that can run such a task"
    assert w.why(many).sentence == (
        "job many runs on n0, the only node that can run such tasks; queue root.ads uses 75 % of the cluster and its "
        "share is 10 %, so its newest tasks may be stopped when other queues need their shares"
    )


def test_nothing_is_on_loan_if_loans_are_not_stopped() -> None:
    w = World({"rebalance_after": 0, "queues": {"root": {"own": {"share": 90}, "ads": {"share": 10}}}})
    w.nodes(1, cpu=4)
    many = w.submit(name="many", queue="root.ads", stages=[stage(3)])
    w.advance(1)
    assert w.why(many).sentence == "job many runs on n0, the only node that can run such tasks"


def test_a_job_that_stops_for_another_and_waits_again() -> None:
    w = World()
    w.nodes(1, cpu=1)
    low = w.submit(name="low", stages=[stage()])
    w.advance(1)
    w.hold_acks("n0")
    high = w.submit(name="high", priority=5, stages=[stage()])
    w.cycle()
    why = w.why(low)
    assert why.sentence == "job low stops on n0 for job high"
    assert isinstance(why.causes[0], Stopping)
    w.release_acks("n0")
    w.advance(1)
    assert w.placements(high)
    why = w.why(low)
    assert why.sentence == (
        "job low waits for 1 CPU: no CPU is free; 1 task waits again (last attempt: preempted for job high)"
    )
    assert isinstance(why.causes[0], LastAttempt)


def test_a_launch_that_was_refused() -> None:
    w = World()
    w.nodes(1, cpu=1)
    w.hold_acks("n0")
    job = w.submit(stages=[stage()])
    w.cycle()
    w.report(job, "main", 0, 1, "refused", "n0")
    w.cycle()
    why = w.why(job)
    assert "1 task waits again (last attempt: node n0 refused the launch" in why.sentence
    assert "1 node is paused after failed launches" in why.sentence


def test_jobs_that_are_over() -> None:
    w = World()
    w.nodes(1, cpu=2)
    done, failed = w.submit(stages=[stage()]), w.submit(stages=[stage()])
    w.advance(1)
    w.finish(done)
    w.finish(failed, exit_code=3)
    w.cycle()
    assert w.why(done).sentence == f"job {done} is over: succeeded"
    assert w.why(failed).sentence == f"job {failed} is over: failed, task main[0] failed: exit code 3"


def test_questions_change_nothing() -> None:
    w = World()
    w.nodes(2, cpu=2)
    w.submit(stages=[stage(3)])
    job = w.submit(stages=[stage(4, cpu=2)])
    w.cycle()
    before = w.dump()
    assert w.why(job).waiting[0].remedies
    assert w.why(job) == w.why(job)
    assert not w.dry_run(stages=[stage(2)]).starts
    assert w.dump() == before


def test_a_dry_run_starts_waits_or_never_starts() -> None:
    w = World()
    w.nodes(2, cpu=2)
    w.submit(name="first", stages=[stage(3)])
    w.cycle()
    starts = w.dry_run(stages=[stage(1)])
    assert starts.starts
    assert starts.placed == [("main", "n1", 1)]
    assert starts.explained().sentence == "submitted now, it starts at once on n1"
    some = w.dry_run(stages=[stage(3, minimum=1)]).explained()
    assert some.sentence == "submitted now, it starts at once with 1 of 3 tasks on n1"
    waits = w.dry_run(stages=[stage(2)])
    assert not waits.starts and waits.never is None
    assert texts(waits.explained().waiting[0].remedies) == [
        "1 task of job first on n1 ends",
        "it is submitted with 1 task",
        "a node with 1 CPU is added",
    ]
    never = w.dry_run(stages=[stage(1, cpu=9)])
    assert str(never.never).startswith("can never run: the largest node, n0, has 2 CPUs (asked: 9)")
    with pytest.raises(Refused, match="there is no queue"):
        w.dry_run(queue="root.nowhere", stages=[stage(1)])


def test_a_long_lane_is_not_walked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.views.summaries.WALKED", 2)
    w = World({"queues": {"root": {"default": {"order": "priority"}}}})
    w.nodes(1, cpu=1)
    jobs = [w.submit(stages=[stage(2, minimum=1)]) for _ in range(5)]
    w.cycle()
    (second, last) = w.explain(jobs[1])[0], w.explain(jobs[4])[0]
    assert str(second) == "2 tasks wait behind 1 job (1 task) in queue root.default"
    assert str(last) == "2 tasks wait behind at least 2 jobs (3 tasks) in queue root.default"


TOO_LARGE = "the largest node, n0, has 4 CPUs (asked: 64)"


def test_a_job_that_can_never_run_is_told_so_first() -> None:
    w = World()
    w.queue("root.one", max_jobs=1)
    w.queue("root.tight", limit={"cpu": 2}, share=1)
    w.queue("root.free", share=0)
    w.queue("root.deep", share=1)
    w.nodes(1, cpu=4)
    w.submit(name="runs", queue="root.one", stages=[stage()])
    w.submit(name="some", queue="root.tight", stages=[stage()])
    w.submit(name="rest", queue="root.deep", stages=[stage(2)])
    w.cycle()
    w.submit(name="head", queue="root.deep", stages=[stage()])
    w.cycle()
    never = "can never run as the cluster is now"
    firm = "queue root.free has a share of 0, and only preemptible tasks may borrow more"
    cases: dict[str, tuple[dict[str, object], str]] = {
        "jobs": (
            {"queue": "root.one", "stages": [stage(cpu=64)]},
            f"{never}: {TOO_LARGE}; it also waits: 1 job runs already in queue root.one, and max_jobs allows no more",
        ),
        "limit": (
            {"queue": "root.tight", "stages": [stage(cpu=3)]},
            f"{never}: the limit of queue root.tight is 2 CPUs: 1 in use, 3 more needed",
        ),
        "share": ({"queue": "root.free", "preemptible": False, "stages": [stage()]}, f"{never}: {firm}"),
        "behind": (
            {"queue": "root.deep", "stages": [stage(5)]},
            f"{never}: all nodes and pools together take 4 of 5 tasks (missing: capacity for 1 more with 1 CPU); "
            "it also waits behind 1 job (1 task) in queue root.deep",
        ),
        "after": (
            {"queue": "root.one", "after": ["runs"], "stages": [stage(cpu=64)]},
            f"{never}: {TOO_LARGE}; it also waits for job runs",
        ),
    }
    for name, (document, said) in cases.items():
        tried = w.dry_run(**document)  # type: ignore[arg-type]
        assert tried.never is not None
        assert tried.explained().sentence == f"it {said}"
        job = w.submit(name=name, **document)  # type: ignore[arg-type]
        w.cycle()
        assert w.why(job).sentence == f"job {name} {said}"
        w.kill(job)
        w.cycle()


def test_the_stage_that_can_never_run_comes_first() -> None:
    w = World({"queues": {"root": {"one": {"max_jobs": 1}}}})
    w.nodes(1, cpu=4)
    w.submit(name="runs", queue="root.one", stages=[stage()])
    w.cycle()
    stages = [{**stage(), "name": "a"}, {**stage(cpu=64), "name": "b"}]
    job = w.submit(name="two", queue="root.one", stages=stages)
    w.cycle()
    assert w.why(job).sentence == (
        f"job two can never run as the cluster is now: {TOO_LARGE}; it also waits: 1 job runs already in "
        "queue root.one, and max_jobs allows no more (stage b; 1 more stage waits)"
    )


def test_a_job_that_runs_is_not_kept_back_by_settings_for_new_jobs() -> None:
    w = World({"queues": {"root": {"one": {"max_jobs": 1}}}})
    w.nodes(1, cpu=1)
    job = w.submit(name="part", queue="root.one", stages=[stage(2, minimum=1)])
    w.cycle()
    w.configure({"queues": {"root": {"one": {"max_jobs": 0}}}})
    w.cycle()
    assert w.why(job).sentence.startswith("job part waits for 1 CPU")


def test_every_step_of_a_remedy_is_needed() -> None:
    w = World({"queues": {"root": {"a": {"max_jobs": 1, "users": {"*": {"max_jobs": 1}}}}}, "backfill": "easy"})
    w.nodes(1, cpu=1)
    w.submit(name="runs", user="ann", queue="root.a", stages=[stage()])
    w.submit(name="first", user="bob", queue="root.a", priority=5, stages=[{**stage(cpu=3), "estimate": 10}])
    job = w.submit(user="bob", queue="root.a", stages=[{**stage(5, cpu=0.5), "estimate": 600}])
    w.cycle()
    # With more capacity at first, bringing it to the front was needed; with no more than enough, it is not.
    assert texts(w.why(job).waiting[0].remedies) == [
        "max_jobs of queue root.a is raised to 2 and nodes with capacity for 5 tasks of 0.5 CPU are added"
    ]


def test_a_share_that_is_too_small_for_one_task() -> None:
    w = World({"queues": {"root": {"big": {"share": 100}, "tiny": {"share": 1}}}})
    w.nodes(2, cpu=2)
    job = w.submit(name="firm", queue="root.tiny", preemptible=False, stages=[stage()])
    w.cycle()
    why = w.why(job)
    assert why.sentence == (
        "job firm waits: queue root.tiny has a share that is too small for one task, and only preemptible "
        "tasks may borrow more"
    )
    assert texts(why.waiting[0].remedies) == [
        "the share of queue root.tiny is raised to 2",
        "it is submitted as preemptible",
    ]


def test_sentences_agree_in_number_and_name_things_once() -> None:
    w = World({"queues": {"root": {"one": {"max_jobs": 1}, "two": {}}}})
    w.nodes(1, cpu=4)
    first = w.submit(name="first", queue="root.one", stages=[stage()])
    w.cycle()
    second = w.submit(name="second", queue="root.one", stages=[stage()])
    both = w.submit(name="both", queue="root.two", after=[first, second, first], stages=[stage()])
    parts = w.submit(name="parts", queue="root.two", stages=[{**stage(), "name": "a"}, {**stage(), "name": "b"}])
    w.advance(1)
    assert (
        w.why(second).sentence == "job second waits: 1 job runs already in queue root.one, and max_jobs allows no more"
    )
    assert w.why(both).sentence == "job both waits for jobs first, second"
    assert w.why(parts).sentence == "job parts: 1 task of a runs on n0; 1 task of b runs on n0"
    w.finish(parts, "a", 0)
    w.cycle()
    assert w.why(parts).sentence.startswith("job parts: 1 task of b runs on n0, the only node that can run such a task")
    w.kill(parts)
    w.cycle()
    assert w.why(parts).sentence.startswith("job parts is over: killed by the operator")


def test_one_allocation_stops_for_a_job() -> None:
    w = World()
    w.nodes(1, cpu=1)
    w.submit(name="low", stages=[stage()])
    w.advance(1)
    w.hold_acks("n0")
    high = w.submit(name="high", priority=5, stages=[stage()])
    w.cycle()
    assert w.why(high).sentence == "job high waits for 1 CPU: no CPU is free; tasks stop for it"
    w.release_acks("n0")
    w.advance(1)
    assert str(w.why("low").causes[0]) == "1 task waits again (last attempt: preempted for job high)"


def test_a_remedy_names_the_tasks_of_a_stage_on_a_node_once() -> None:
    blocks = (Block("a", "main", (4, 6)), Block("b", "main", (0, 1)), Block("a", "main", (0, 2)))
    step = EndTasks("n0", blocks)
    assert str(step) == "4 tasks of job a and 1 task of job b on n0 end"
    hidden = "5 tasks of other users' jobs on n0 end"
    assert str(step.shown_to(lambda job: False)) == hidden


def test_a_remedy_sums_the_tasks_of_more_than_three_jobs() -> None:
    step = EndTasks("n0", tuple(Block(job, "main", (0, 2)) for job in "abcd"))
    assert str(step) == "8 tasks of 4 jobs on n0 end"
    assert str(step.shown_to(lambda job: job != "a")) == "8 tasks of several jobs on n0 end"


def test_a_job_can_end_for_another_that_may_not_run_beside_it() -> None:
    w = World({"queues": {"root": {"one": {"max_jobs": 2}}}})
    w.nodes(2, cpu=4)
    w.submit(name="wide", queue="root.one", stages=[stage(3)])
    w.submit(name="pair", queue="root.one", stages=[{**stage(2), "apart": True}])
    w.cycle()
    job = w.submit(queue="root.one", stages=[stage()])
    w.cycle()
    assert texts(w.why(job).waiting[0].remedies) == [
        "2 tasks of job pair on n0 and n1 end",
        "max_jobs of queue root.one is raised to 3",
    ]


def test_what_keeps_pools_from_bringing_nodes_is_in_the_first_sentence() -> None:
    w = World({"max_orders": 1})
    w.pool("gpus", node={"cpu": 8, "gpu": 2}, max=3)
    job = w.submit(name="train", stages=[stage(3, gpu=2)])
    w.cycle()
    assert w.why(job).sentence == "job train waits for nodes for 3 tasks at once: 3 nodes are ordered for it"
    w.fail_order("gpus", "quota exceeded")
    w.cycle()
    assert w.why(job).sentence == (
        "job train waits for nodes for 3 tasks at once: 1 order of nodes for it failed (quota exceeded); no more "
        "nodes are ordered for it until a pool is resumed or added; pool gpus is paused"
    )
    w.resume_pool("gpus")
    w.pause_pool("gpus")
    w.cycle()
    assert w.why(job).sentence == "job train waits for nodes for 3 tasks at once: pool gpus is paused"


def test_a_new_node_has_to_take_tasks_of_the_user_where_others_do_not() -> None:
    w = World()
    w.node("desk", cpu=2, users=["bob"])
    job = w.submit(name="mine", user="ann", stages=[stage()])
    own = w.submit(name="own", user="bob", stages=[stage(cpu=3)])
    w.cycle()
    assert texts(w.why(job).waiting[0].remedies) == ["a node with 1 CPU that takes tasks of user ann is added"]
    assert not any("of user" in text for text in texts(w.why(own).waiting[0].remedies))


def test_a_job_after_one_that_can_never_run() -> None:
    w = World()
    w.nodes(1, cpu=2)
    runs = w.submit(name="runs", stages=[stage()])
    never = w.submit(name="never", stages=[stage(gpu=1)])
    second = w.submit(name="second", after=[runs, never], stages=[stage()])
    third = w.submit(name="third", after=[second], stages=[stage()])
    fine = w.submit(name="fine", after=[runs], stages=[stage()])
    w.cycle()
    can_never = "can never run as the cluster is now"
    assert w.why(second).sentence == f"job second waits for jobs runs, never; job never {can_never}"
    assert w.why(third).sentence == f"job third waits for job second, which {can_never}"
    assert w.why(fine).sentence == "job fine waits for job runs"


# -- of one moment -----------------------------------------------------------------------------------------------


def test_free_capacity_is_that_of_the_question() -> None:
    w = World()
    w.nodes(2, cpu=8)
    w.cycle()
    w.drain("n1")
    gang = w.submit(name="gang", stages=[stage(6, cpu=2)])
    w.cycle()
    assert w.why(gang).sentence.endswith("8 are free on n0, enough for 4")
    w.submit(name="small", stages=[stage(3)])
    w.cycle()
    assert w.why(gang).sentence.endswith("5 are free on n0, enough for 2")
    assert str(w.explain(gang)[0].reason).startswith("2 of 6 fit now")


def test_the_use_of_a_limit_is_that_of_the_question() -> None:
    w = World({"queues": {"root": {"q": {"limit": {"cpu": 6}}}}})
    w.nodes(4, cpu=8)
    gang = w.submit(name="gang", queue="root.q", stages=[stage(7)])
    w.cycle()
    w.submit(name="small", queue="root.q", stages=[stage(1, cpu=2)])
    w.cycle()
    assert str(w.explain(gang)[0].reason) == "the limit of queue root.q is 6 CPUs: 2 in use, 7 more needed"


def test_a_head_without_capacity_says_so_after_a_task_has_started_from_a_hold() -> None:
    w = World({"starving_after": "5s"})
    w.nodes(2, cpu=1)
    w.submit(name="short", stages=[{**stage(), "duration": 20}])
    w.submit(name="long", stages=[stage()])
    w.cycle()
    array = w.submit(name="array", stages=[stage(3, minimum=1)])
    w.advance(30)
    assert len(w.placements(array)) == 1
    assert w.why(array).sentence == "job array waits for 1 CPU: no CPU is free; 1 task runs on n0"


def test_nodes_without_gpus_do_not_count_for_a_task_with_one() -> None:
    w = World()
    w.nodes(2, cpu=4)
    w.node("g", cpu=4, gpu=1)
    job = w.submit(name="job", stages=[stage(1, cpu=1, gpu=1)])
    w.advance(1)
    assert w.why(job).sentence == "job job runs on g, the only one of 3 nodes that can run such a task"
    other = w.submit(name="other", stages=[stage(1, cpu=1, gpu=1)])
    w.advance(1)
    assert w.why(other).sentence == "job other waits for 1 GPU: no GPU is free on the only node that can run it"
    assert str(w.explain(other)[0].reason) == "0 of 1 fit now: 2 nodes have no GPU; 1 has too few GPUs free"


def test_the_nearest_label_and_pool_are_named() -> None:
    w = World()
    w.node("n0", cpu=8, gpu=4, pool="gpu", labels={"gpu_model": "NVIDIA-H200", "zone": "east-1"})
    for selectors, said in (
        ({"gpu.model": "H200"}, "gpu.model=H200 (did you mean gpu_model=NVIDIA-H200?)"),
        ({"gpu_model": "h200"}, "gpu_model=h200 (did you mean gpu_model=NVIDIA-H200?)"),
        ({"Zone": "*"}, "Zone (did you mean zone?)"),
        ({"rack": "7"}, "rack=7"),
        ({"zone": "b"}, "zone=b (but zone=east-1)"),
    ):
        job = w.submit(stages=[{**stage(), "selectors": selectors}])
        w.cycle()
        assert str(w.explain(job)[0].reason) == f"can never run: no node has label {said}"
    job = w.submit(stages=[{**stage(), "pool": "gpus"}])
    w.cycle()
    assert str(w.explain(job)[0].reason) == "can never run: no node is in pool gpus (did you mean gpu?)"


# -- what comes by itself ----------------------------------------------------------------------------------------


def comes(w: World, job: str, reader: bool = True) -> list[str]:
    return [str(coming.shown_to(lambda job: reader)) for coming in w.explain(job)[0].comes]


def test_tasks_that_end_by_a_time_limit_or_an_estimate() -> None:
    w = World({"hold_for": 0})
    w.nodes(2, cpu=2)
    w.submit(name="a", stages=[{**stage(cpu=2), "time_limit": "10min"}])
    w.submit(name="b", stages=[{**stage(cpu=2), "estimate": "2h"}])
    w.cycle()
    one, both = w.submit(name="one", stages=[stage(cpu=2)]), w.submit(name="both", stages=[stage(2, cpu=1.5)])
    w.advance(60)
    assert comes(w, one) == ["1 task of job a ends in 9min at the latest (time limit)"]
    assert comes(w, one, reader=False) == ["1 task of another user's job ends in 9min at the latest (time limit)"]
    assert comes(w, both) == ["2 tasks of jobs a and b end in about 1h59min (estimate)"]


def test_own_tasks_holds_stops_and_orders() -> None:
    w = World({"starving_after": "1min"})
    w.nodes(1, cpu=2)
    array = w.submit(name="array", stages=[stage(5, minimum=1)])
    w.advance(1)
    assert comes(w, array) == ["1 can start when one of its 2 running tasks ends"]
    gang = w.submit(name="gang", stages=[stage(1, cpu=2)])
    w.advance(1)
    assert comes(w, gang) == [
        "if it still waits in 59s (starving_after), nodes are held for it; "
        "until then smaller tasks that fit may start before it"
    ]
    w.advance(60)
    assert comes(w, gang) == ["n0 is held for it and takes no other tasks"]
    w = World({"hold_for": 0})
    w.node("n0", cpu=1)
    w.pool("more", node={"cpu": 8}, max=1)
    large = w.submit(name="large", stages=[stage(1, cpu=8)])
    w.cycle()
    assert comes(w, large) == ["1 node is ordered for it"]


def no_hold(w: World, job: str) -> str:
    return w.explain(job)[0].no_hold


def holders(w: World) -> set[str]:
    return {job for held in w.holds().values() for job, _, _ in held}


def busy(nodes: int, **settings: Any) -> World:
    w = World({"starving_after": "10min", **settings})
    w.nodes(nodes, cpu=4)
    for _ in range(nodes):
        w.submit(stages=[{**stage(cpu=4), "duration": 50_000}])
    w.cycle()
    return w


def test_a_held_node_that_is_too_small_is_not_told_as_held() -> None:
    w = World({"starving_after": "1s", "hold_for": "1h"})
    w.node("small", cpu=2)
    w.node("large", cpu=8)
    w.submit(stages=[{"resources": {"cpu": 8}}])
    w.submit(stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="medium", stages=[{"name": "w", "resources": {"cpu": 2}}])
    w.advance(2)
    assert [*w.holds()] == ["small"]
    w.submit(name="big", stages=[{"resources": {"cpu": 8}}])
    w.cycle()
    why = w.why("big")
    assert "held" not in why.sentence
    assert "1 node has too few CPUs" in str(why.waiting[0].reason)


@pytest.mark.parametrize("percent", [0, 50, 60])
def test_a_gang_that_held_nodes_percent_keeps_from_a_hold(percent: int) -> None:
    w = busy(5, held_nodes_percent=percent, hold_large=False)
    gang = w.submit(name="gang", stages=[stage(4, cpu=4)])
    for seconds in (10, 700):
        w.advance(seconds)
        assert comes(w, gang) == []
        assert no_hold(w, gang) == (
            f"no nodes will be held for it: it needs more nodes than held_nodes_percent: {percent} allows; "
            "an operator can raise it to 61, or set hold_large"
        )
        assert w.holds() == {}
    w.configure({"starving_after": "10min", "held_nodes_percent": 61, "hold_large": False})
    w.advance(1)
    assert (no_hold(w, gang), holders(w)) == ("", {gang})


def test_a_gang_that_waits_for_the_end_of_another_hold() -> None:
    w = busy(4, held_nodes_percent=25)
    one = w.submit(name="one", stages=[stage(1, cpu=4)])
    w.advance(601)
    assert holders(w) == {one}
    gang = w.submit(name="gang", stages=[stage(4, cpu=3)])
    w.advance(1)
    assert comes(w, gang) == ["nodes can be held for it once none are held for job one"]
    assert comes(w, gang, reader=False) == ["nodes can be held for it once none are held for another user's job"]
    w.advance(700)
    assert comes(w, gang) == ["nodes can be held for it once none are held for job one"]
    w.kill(one)
    w.cycle()
    assert holders(w) == {gang}


def test_no_hold_is_promised_to_a_gang_larger_than_the_nodes_that_are_up() -> None:
    w = busy(4)
    w.drain("n3")
    gang = w.submit(name="gang", stages=[stage(4, cpu=4)])
    w.advance(10)
    assert (comes(w, gang), no_hold(w, gang)) == ([], "")


def test_nodes_that_are_held_for_a_named_job_are_told_once() -> None:
    hold = HeldFor("7", "main", 1, 0, ("n0",))
    reason = NoCapacity(wanted=1, fitting=0, failed=(("held", 1), ("draining", 1)), closed=(hold,))
    assert str(reason) == f"0 of 1 fit now: 1 node is draining; {hold}"
    assert "2 nodes are held for other jobs" in str(structs.replace(reason, failed=(("held", 2),)))


def test_remedies_are_sums_and_the_cheapest_three() -> None:
    w = World()
    w.nodes(12, cpu=1)
    w.submit(name="wide", stages=[stage(12, minimum=1)])
    w.cycle()
    gang = w.submit(name="gang", stages=[stage(6)])
    w.cycle()
    assert texts(w.why(gang).waiting[0].remedies) == [
        "6 tasks of job wide on 6 nodes end",
        "nodes with capacity for 6 tasks of 1 CPU are added",
    ]
    w.drain("n0")
    w.drain("n1")
    solo = w.submit(name="solo", stages=[stage(2, cpu=0.5)])
    w.cycle()
    remedies = w.why(solo).waiting[0].remedies
    assert len(remedies) <= 3
    assert [remedy.cost for remedy in remedies] == sorted(remedy.cost for remedy in remedies)


def test_an_owner_reads_when_loans_return() -> None:
    w = World({"queues": {"root": {"research": {"share": 60}, "batch": {"share": 40}}}})
    w.nodes(1, cpu=4)
    for seconds in (3, 3_600, 3_600, 3_600, 3_600):
        w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}, "duration": seconds}])
    w.cycle()
    owner = w.submit(queue="root.research", stages=[{"resources": {"cpu": 2}}])
    w.cycle()
    w.advance(0.5)
    stops = "queue root.research uses 0 % of its 60 %: loans return within 90s (2 tasks are stopped)"
    assert comes(w, owner)[0] == stops
    w.advance(4)
    assert comes(w, owner)[0] == "n0 is set aside for it until the tasks on loan there end"


def test_a_held_job_that_can_never_run_is_told_both() -> None:
    w = World()
    w.node("n0", cpu=4)
    job = w.submit(name="job", user="ann", stages=[stage(cpu=64)])
    w.hold(job, user="ann")
    w.cycle()
    never = f"can never run as the cluster is now: {TOO_LARGE}"
    assert w.why(job).sentence == f"job job {never}; it is also held by ann"
    assert str(w.explain(job)[0]) == f"1 task waits, held by ann; even when released it can never run: {TOO_LARGE}"


def test_nodes_that_are_lost_are_counted_beside_the_one_that_is_left() -> None:
    w = World()
    w.nodes(2, cpu=4)
    w.submit(name="runs", stages=[stage(4)])
    w.advance(1)
    (left,) = set(w.placements("runs").values())
    w.fail_node("n0" if left == "n1" else "n1")
    job = w.submit(name="job", stages=[stage()])
    w.advance(1)
    assert w.why(job).sentence == (
        "job job waits for 1 CPU: no CPU is free on the only node that can run it (1 other node is lost)"
    )


def test_other_sizes_that_go_first_are_named() -> None:
    w = World()
    w.nodes(1, cpu=4)
    w.submit(name="runs", stages=[stage(4)])
    w.cycle()
    earlier = w.submit(name="earlier", stages=[stage(cpu=2)])
    later = w.submit(name="later", stages=[stage(cpu=1)])
    w.cycle()
    assert str(w.explain(earlier)[0]).startswith("1 task waits, first in queue root.default; ")
    assert str(w.explain(later)[0]).startswith("1 task waits; other jobs of queue root.default may go first; ")


def test_an_owner_reads_how_many_loans_end_and_how_many_are_stopped() -> None:
    w = World({"queues": {"root": {"research": {"share": 60}, "batch": {"share": 40}}}})
    w.nodes(1, cpu=4)
    for seconds in (80, 3_600, 3_600, 3_600):
        w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}, "duration": seconds, "estimate": seconds}])
    w.cycle()
    owner = w.submit(queue="root.research", stages=[{"resources": {"cpu": 2}}])
    w.cycle()
    w.advance(2)
    assert (
        comes(w, owner)[1]
        == "queue root.research uses 0 % of its 60 %: loans return within 89s (1 task ends, 1 task is stopped)"
    )
    w.advance(80)
    assert len(w.placements(owner)) == 1


def test_the_return_of_loans_to_a_very_large_gang_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search may take seconds, and the writer would wait for it."""
    w = World({"queues": {"root": {"research": {"share": 60}, "batch": {"share": 40}}}})
    w.nodes(150, cpu=4)
    w.submit(queue="root.batch", stages=[{"array": 600, "resources": {"cpu": 1}}])
    w.cycle()
    owner = w.submit(queue="root.research", stages=[{"count": 140, "resources": {"cpu": 2}}])
    w.cycle()
    w.advance(0.5)
    monkeypatch.setattr(outlook, "Balance", None)
    told = "queue root.research uses 0 % of its 60 %: if enough tasks on loan can be stopped for it, that begins in 60s"
    assert told in comes(w, owner)


def test_an_owner_reads_that_no_loan_can_be_stopped() -> None:
    w = World({"queues": {"root": {"research": {"share": 60}, "batch": {"share": 40}}}})
    w.nodes(1, cpu=4)
    w.submit(queue="root.batch", preemptible=False, stages=[{"count": 4, "resources": {"cpu": 1}}])
    w.cycle()
    owner = w.submit(queue="root.research", stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    told = (
        "queue root.research uses 0 % of its 60 %: no tasks on loan can be stopped for it so far; the next look is in"
    )
    assert comes(w, owner)[0].startswith(told)
