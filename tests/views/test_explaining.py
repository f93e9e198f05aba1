"""One sentence about a job in every state, the typed reasons behind it, and remedies."""

from __future__ import annotations

import pytest

from fairlead.core.errors import Refused
from fairlead.core.remedy.steps import (
    AddNodes,
    Block,
    EndTasks,
    MoveToFront,
    RaiseLimit,
    ReleaseHold,
    Remedy,
)
from fairlead.testing import World
from fairlead.views.causes import LastAttempt, RunsOn, Stopping

GPU_TASK = {"cpu": 1, "gpu": 4}


def stage(count: int = 1, minimum: int | None = None, **resources: object) -> dict[str, object]:
    least = {} if minimum is None else {"min": minimum}
    return {"name": "main", "count": count, "resources": resources or {"cpu": 1}, **least}


def texts(remedies: tuple[Remedy, ...]) -> list[str]:
    return [str(remedy) for remedy in remedies]


def test_a_gang_waits_for_gpus_some_of_which_are_free() -> None:
    w = World()
    w.nodes(2, gpu=4, cpu=8)
    w.submit(name="small", stages=[stage(3, gpu=1)])
    w.cycle()
    gang = w.submit(name="gang", stages=[stage(8, gpu=1)])
    w.cycle()
    why = w.why(gang)
    assert why.sentence == "job gang waits for 3 more GPUs of 8: 5 are free on n0 and n1"
    (waiting,) = why.waiting
    assert texts(waiting.remedies) == [
        "end 3 tasks of small[main] on n0",
        "add a node with gpu=3",
        "submit it with 5 tasks",
    ]
    assert isinstance(waiting.remedies[0].steps[0], EndTasks)
    assert isinstance(waiting.remedies[1].steps[0], AddNodes)


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
        "job late waits for room for 1 task: n1 and n0 are held for job starving, which has waited 100s"
    )
    assert Remedy((ReleaseHold("starving"),)) in why.waiting[0].remedies


def test_a_limit_along_the_path() -> None:
    w = World({"queues": {"root": {"ci": {"limit": {"cpu": 2}}}}})
    w.nodes(1, cpu=8)
    job = w.submit(queue="root.ci", stages=[stage(3, minimum=1)])
    w.cycle()
    why = w.why(job)
    assert why.sentence == (
        "job job waits: queue root.ci: limit cpu=2, used cpu=2, asked cpu=1; 2 tasks are starting on n0"
    )
    raised = RaiseLimit("root.ci", now=2000, resource="cpu", limit=3000)
    assert why.waiting[0].remedies == (Remedy((raised,)),)
    assert str(raised) == "raise the limit of queue root.ci to cpu=3"


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
    assert texts(w.why(later).waiting[0].remedies) == ["wait until job first has succeeded"]
    assert w.why(never).sentence == (
        "job never can never run as the cluster is now: no node has label zone=x; the partition has no pools"
    )
    assert texts(w.why(never).waiting[0].remedies) == ["add a node with cpu=1 and labels zone=x"]


def test_a_running_job_and_the_choice_of_its_nodes() -> None:
    w = World()
    w.nodes(2, cpu=2)
    w.node("g0", cpu=2, taints=["gpu"])
    job = w.submit(stages=[stage(2)])
    w.cycle()
    assert w.why(job).sentence == "job job is starting on n0"
    w.cycle()
    why = w.why(job)
    assert why.sentence == "job job runs on n0, chosen by placement `pack` among 2 of 3 nodes that take its tasks"
    assert why.causes == (RunsOn("main", 2, ("n0",), 1, "pack", 2, 3),)
    assert not why.waiting


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
        "job low waits for 1 CPU (nodes: 1 missing cpu); the last attempt of 1 task: preempted for job high"
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
    assert "the last attempt of 1 task: node n0 refused the launch" in why.sentence
    assert "1 backed off" in why.sentence


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
        "end 1 task of first[main] on n1",
        "add a node with cpu=1",
        "submit it with 1 task",
    ]
    never = w.dry_run(stages=[stage(1, cpu=9)])
    assert str(never.never).startswith("never fits: the largest node (n0) has cpu=2 of the asked cpu=9")
    with pytest.raises(Refused, match="there is no queue"):
        w.dry_run(queue="root.nowhere", stages=[stage(1)])


def test_a_long_lane_is_not_walked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.views.documents.WALKED", 2)
    w = World()
    w.nodes(1, cpu=1)
    jobs = [w.submit(stages=[stage(2, minimum=1)]) for _ in range(5)]
    w.cycle()
    (second, last) = w.explain(jobs[1])[0], w.explain(jobs[4])[0]
    assert "number 2 in its lane, behind 1 job (1 task)" in str(second)
    assert "number 3 in its lane or later, behind at least 2 jobs (3 tasks)" in str(last)


TOO_LARGE = "the largest node (n0) has cpu=4 of the asked cpu=64; the partition has no pools"


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
    firm = "queue root.free has a share of 0, and tasks that are not preemptible get no loan"
    cases: dict[str, tuple[dict[str, object], str]] = {
        "jobs": (
            {"queue": "root.one", "stages": [stage(cpu=64)]},
            f"{never}: {TOO_LARGE}; besides, it waits: queue root.one: 1 job is running, no more are allowed",
        ),
        "limit": (
            {"queue": "root.tight", "stages": [stage(cpu=3)]},
            f"{never}: queue root.tight: limit cpu=2, used cpu=1, asked cpu=3",
        ),
        "share": ({"queue": "root.free", "preemptible": False, "stages": [stage()]}, f"{never}: {firm}"),
        "behind": (
            {"queue": "root.deep", "stages": [stage(5)]},
            f"{never}: all nodes and pools together take 4 of 5; besides, it waits behind 1 job (1 task) in queue "
            "root.deep",
        ),
        "after": (
            {"queue": "root.one", "after": ["runs"], "stages": [stage(cpu=64)]},
            f"{never}: {TOO_LARGE}; besides, it waits for job runs",
        ),
    }
    for name, (document, said) in cases.items():
        tried = w.dry_run(**document)  # type: ignore[arg-type]
        assert tried.never is not None
        assert tried.explained().sentence == f"submitted now, it {said}"
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
        f"job two can never run as the cluster is now: {TOO_LARGE}; besides, it waits: queue root.one: 1 job is "
        "running, no more are allowed (stage b; 1 more stage waits)"
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
    assert texts(w.why(job).waiting[0].remedies) == ["raise max_jobs of queue root.a to 2 and add a node with cpu=2.5"]


def test_a_share_that_is_too_small_for_one_task() -> None:
    w = World({"queues": {"root": {"big": {"share": 100}, "tiny": {"share": 1}}}})
    w.nodes(2, cpu=2)
    job = w.submit(name="firm", queue="root.tiny", preemptible=False, stages=[stage()])
    w.cycle()
    why = w.why(job)
    assert why.sentence == (
        "job firm waits: queue root.tiny has a share that is too small for one task, and tasks that are not "
        "preemptible get no loan"
    )
    assert texts(why.waiting[0].remedies) == ["submit it as preemptible", "raise the share of queue root.tiny to 2"]


def test_sentences_agree_in_number_and_name_things_once() -> None:
    w = World({"queues": {"root": {"one": {"max_jobs": 1}, "two": {}}}})
    w.nodes(1, cpu=4)
    first = w.submit(name="first", queue="root.one", stages=[stage()])
    w.cycle()
    second = w.submit(name="second", queue="root.one", stages=[stage()])
    both = w.submit(name="both", queue="root.two", after=[first, second, first], stages=[stage()])
    parts = w.submit(name="parts", queue="root.two", stages=[{**stage(), "name": "a"}, {**stage(), "name": "b"}])
    w.advance(1)
    assert w.why(second).sentence == "job second waits: queue root.one: 1 job is running, no more are allowed"
    assert w.why(both).sentence == "job both waits for jobs first, second"
    assert w.why(parts).sentence == "job parts: 1 task of a runs on n0; 1 task of b runs on n0"
    w.finish(parts, "a", 0)
    w.cycle()
    assert w.why(parts).sentence.startswith("job parts: 1 task of b runs on n0, chosen by")
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
    assert w.why(high).sentence == "job high waits for 1 CPU (nodes: 1 missing cpu): 1 allocation stops for it"
    w.release_acks("n0")
    w.advance(1)
    assert str(w.why("low").causes[0]) == "main: the last attempt of 1 task that waits: preempted for job high"


def test_a_remedy_names_the_tasks_of_a_stage_on_a_node_once() -> None:
    blocks = (Block("a", "main", (4, 6)), Block("b", "main", (0, 1)), Block("a", "main", (0, 2)))
    step = EndTasks("n0", blocks)
    assert str(step) == "end 4 tasks of a[main], 1 task of b[main] on n0"
    hidden = "end 4 tasks of another user's job, 1 task of another user's job on n0"
    assert str(step.shown_to(lambda job: False)) == hidden


def test_a_job_can_end_for_another_that_may_not_run_beside_it() -> None:
    w = World({"queues": {"root": {"one": {"max_jobs": 2}}}})
    w.nodes(2, cpu=4)
    w.submit(name="wide", queue="root.one", stages=[stage(3)])
    w.submit(name="pair", queue="root.one", stages=[{**stage(2), "apart": True}])
    w.cycle()
    job = w.submit(queue="root.one", stages=[stage()])
    w.cycle()
    assert texts(w.why(job).waiting[0].remedies) == [
        "raise max_jobs of queue root.one to 3",
        "end 1 task of pair[main] on n0 and end 1 task of pair[main] on n1",
    ]


def test_what_keeps_pools_from_bringing_nodes_is_in_the_first_sentence() -> None:
    w = World({"max_orders": 1})
    w.pool("gpus", node={"cpu": 8, "gpu": 2}, max=3)
    job = w.submit(name="train", stages=[stage(3, gpu=2)])
    w.cycle()
    assert w.why(job).sentence == "job train waits for room for 3 tasks: 3 nodes are ordered for it"
    w.fail_order("gpus", "quota exceeded")
    w.cycle()
    assert w.why(job).sentence == (
        "job train waits for room for 3 tasks: orders of nodes for it failed: 1 (quota exceeded); no more are made "
        "until a pool is resumed or added; pool gpus is paused"
    )
    w.resume_pool("gpus")
    w.pause_pool("gpus")
    w.cycle()
    assert w.why(job).sentence == "job train waits for room for 3 tasks: pool gpus is paused"


def test_a_new_node_has_to_take_tasks_of_the_user_where_others_do_not() -> None:
    w = World()
    w.node("desk", cpu=2, users=["bob"])
    job = w.submit(name="mine", user="ann", stages=[stage()])
    own = w.submit(name="own", user="bob", stages=[stage(cpu=3)])
    w.cycle()
    assert texts(w.why(job).waiting[0].remedies) == ["add a node with cpu=1 that takes tasks of user ann"]
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
