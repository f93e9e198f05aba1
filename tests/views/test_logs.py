"""Log lines with their reasons: small worlds and the lines they log."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import structlog

from fairlead.server.logfile import logger_to
from fairlead.testing import World
from fairlead.views.decision_log import Logs

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"


class Logged(World):
    """A world with logs, and a way to read them."""

    def __init__(self, config: Any = None, level: Any = "info", **rest: Any) -> None:
        self.out = io.StringIO()
        super().__init__(config, observers=[Logs(logger_to(self.out, "json", level))], **rest)

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """Return the lines since the last call, without common fields; with `events`, only those of these events."""
        lines = [json.loads(line) for line in self.out.getvalue().splitlines()]
        self.out.truncate(self.out.seek(0))
        for line in lines:
            assert line.pop("partition") == "default"
            assert line.pop("timestamp")
        return [line for line in lines if not events or line["event"] in events]

    def tasks(self, count: int, **rest: Any) -> str:
        return self.submit(stages=[{"name": "w", "count": count, "resources": {"cpu": 1}, **rest}])


def warning(event: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"level": "warning", "event": event, "at": at, **fields}


def info(event: str, at: float, **fields: Any) -> dict[str, Any]:
    return {**warning(event, at, **fields), "level": "info"}


def test_a_start() -> None:
    w = Logged()
    assert w.lines() == [
        info("writer began", 0, jobs=0, nodes=0, ready=False),
        info("partition ready", 0),  # no known node has to report
        info("configuration applied", 0, version=1, changed=["queues", "settings"]),
    ]


def test_a_job_from_its_start_to_its_end() -> None:
    w = Logged()
    w.nodes(2, cpu=2)
    w.cycle()
    w.lines()
    job = w.submit(user="ann", priority=3, stages=[{"name": "w", "count": 3, "resources": {"cpu": 1}, "duration": 20}])
    after = w.submit(after=[job], stages=[{"name": "w", "resources": {"cpu": 9}}])
    w.advance(5)
    submitted = {"queue": "root.default", "tasks": 3}
    assert w.lines() == [
        info("job submitted", 0, job=job, user="ann", priority=3, after=[], **submitted),
        info("job submitted", 0, job=after, user="user", priority=0, after=[job], **{**submitted, "tasks": 1}),
        info(
            "tasks placed",
            0,
            job=job,
            stage="w",
            queue="root.default",
            kind="new",
            attempt=1,
            tasks=3,
            gang=True,
            nodes=2,
            on=["n0", "n1"],
            waited_seconds=0,
        ),
    ]
    w.advance(20)
    assert w.lines() == [
        info("job over", 20, job=job, state="succeeded", queue="root.default", lasted_seconds=20, reason="")
    ]
    w.kill(after, "user")
    w.cycle()
    [line] = w.lines()
    assert (line["event"], line["state"], line["reason"]) == ("job over", "killed", "killed by user")


def test_a_few_single_tasks_have_a_line_each() -> None:
    w = Logged()
    w.nodes(2, cpu=3)
    w.cycle()
    w.lines()
    jobs = [w.tasks(1) for _ in range(5)]
    w.cycle()
    lines = w.lines("tasks placed")
    assert [line["job"] for line in lines] == jobs
    assert {(line["tasks"], line["waited_seconds"], line["attempt"], line["gang"]) for line in lines} == {
        (1, 0, 1, False)
    }
    assert [line["on"] for line in lines] == [[w.placements(job)["w", 0]] for job in jobs]


@pytest.mark.parametrize("order", ["fifo", "fair"])
def test_a_flood_of_single_tasks_is_three_lines(order: str) -> None:
    """With `fair`, each of these tasks has a change of its own."""
    w = Logged({"queues": {"root": {"default": {"order": order}}}})
    w.nodes(12, cpu=3)
    w.cycle()
    w.lines()
    stage = {"name": "w", "resources": {"cpu": 1}, "duration": 5}
    jobs = [w.submit(user="ann", stages=[stage]) for _ in range(30)]
    w.cycle()
    submitted, placed = w.lines()
    ends = {"first": jobs[0], "last": jobs[-1]}
    of_ann = {"user": "ann", "queue": "root.default", "priority": 0}
    assert submitted == info("single jobs submitted", 0, jobs=30, **ends, **of_ann)
    used = sorted({w.placements(job)["w", 0] for job in jobs}, key=lambda name: int(name[1:]))
    where = {"nodes": len(used), "on": used[:10]}
    assert {**placed, "on": sorted(placed["on"], key=lambda name: int(name[1:]))} == info(
        "single tasks placed", 0, queue="root.default", tasks=30, waited_seconds=0, **ends, **where
    )
    w.advance(5)
    assert w.lines() == [info("single jobs over", 5, jobs=30, state="succeeded", **ends)]


def test_every_command_has_a_line_with_its_user() -> None:
    w = Logged({"queues": {"root": {"default": {"admin": ["eve"]}}}})
    w.node("n1", cpu=2)
    job = w.submit(user="ann", stages=[{"name": "w", "count": 4, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    w.lines()
    w.scale(job, "w", 3)
    w.set_priority(job, -1, user="ann")
    w.cycle()
    assert w.lines() == [
        info("stage scaled", 0, job=job, stage="w", before=4, tasks=3),
        info("priority changed", 0, job=job, before=0, priority=-1, by="ann"),
    ]
    w.prioritise(job, "w")
    w.reset_lane("root.default", job)
    w.cycle()
    assert w.lines() == [
        info("asks brought to front", 0, job=job, stage="w"),
        info("lane reset", 0, queue="root.default", job=job, cancelled=False),
    ]
    w.cancel(job, "w")
    w.cycle()
    assert w.lines() == [info("tasks cancelled", 0, job=job, stage="w", kind="new", tasks=1)]
    w.kill(job, "bob")
    w.kill(job, "bob")
    w.cycle()
    assert [(line["command"], line["times"], line["by"]) for line in w.lines("command refused")] == [("kill", 2, "bob")]
    w.kill(job, "eve")
    w.cycle()
    over, stopped = w.lines()
    assert (over["event"], over["by"], over["reason"]) == ("job over", "eve", "killed by eve")
    where = {"stage": "w", "tasks": 2, "nodes": 1, "on": ["n1"]}
    assert stopped == info("tasks stopped", 0, job=job, by="eve", cause="kill", **{"for": ""}, **where)


def test_a_user_is_not_named_for_what_a_report_caused() -> None:
    w = Logged()
    w.node("n1", cpu=2)
    first, second = w.tasks(1), w.tasks(1)
    w.cycle()
    w.lines()
    w.finish(first)
    w.kill(second, "user")
    w.cycle()
    assert [(line["job"], line.get("by")) for line in w.lines("job over")] == [(first, None), (second, "user")]


def test_preempted_tasks_name_the_job_or_queue_that_they_stop_for() -> None:
    w = Logged()
    w.node("n1", cpu=1)
    low = w.tasks(1)
    w.advance(1)
    high = w.submit(priority=1, stages=[{"name": "w", "resources": {"cpu": 1}}])
    w.cycle()
    [line] = w.lines("tasks stopped")
    assert (line["job"], line["cause"], line["for"]) == (low, "preempt", f"job {high}")
    w.kill(high)  # its promise is gone when the stop is confirmed
    w.advance(1)
    assert w.task(low, "w", 0).reason == f"preempted for job {high}"

    w = Logged(
        {
            "rebalance_threshold": 5,
            "rebalance_after": "1s",
            "queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}},
        }
    )
    w.nodes(2, cpu=1)
    for _ in range(2):
        w.submit(queue="root.a", stages=[{"name": "w", "resources": {"cpu": 1}}])
    w.advance(1)
    w.submit(queue="root.b", stages=[{"name": "w", "resources": {"cpu": 1}}])
    w.cycle()
    w.advance(5)
    [line] = w.lines("tasks stopped")
    assert (line["cause"], line["for"]) == ("preempt", "queue root.b")


def test_managers_and_nodes() -> None:
    w = Logged()
    w.lines()
    w.rm("k8s").register()
    w.cycle()
    w.rm("k8s").update(
        nodes=[{"name": "m0", "resources": {"cpu": 2}}],
        jobs=[{"job": "app"}],
        asks=[{"job": "app", "ask": "x", "resources": {"cpu": 1}}, {"job": "none", "ask": "x"}],
    )
    w.cycle()
    assert w.lines("manager registered", "node added", "manager items refused") == [
        info("manager registered", 0, manager="k8s", again=False),
        info(
            "manager items refused",
            0,
            manager="k8s",
            items=1,
            problem='ask[1].job: there is no job "none"; name one that is known',
        ),
        info("node added", 0, node="m0", pool="", manager="k8s", resources="cpu=2"),
    ]
    w.rm("k8s").remove()
    w.cycle()
    assert [line["event"] for line in w.lines()] == ["job over", "tasks stopped", "node removed", "manager removed"]
    assert not w.partition().managers and not w.partition().nodes.rows and not w.partition().allocations
    assert w.job("app").state == "killed" and w.job("app").reason == "resource manager k8s was removed"


def test_a_part_says_that_more_wait() -> None:
    w = Logged()
    w.node("n1", cpu=2)
    w.tasks(3, min=1)
    w.cycle()
    [line] = w.lines("tasks placed")
    assert (line["tasks"], line["gang"], line["waited_seconds"]) == (2, False, None)


def test_a_refused_launch() -> None:
    w = Logged()
    w.node("n1", cpu=2)
    w.refuse_launches("n1")
    job = w.tasks(1)
    w.cycle()
    w.lines()
    w.cycle()
    refused = {"stage": "w", "attempt": 1, "tasks": 1, "node": "n1", "reason": "node n1 refused the launch"}
    assert w.lines() == [
        warning("launch undone", 0, job=job, again="new", **refused),
        warning("node avoided", 0, node="n1", failures=1, pause_seconds=1),
    ]


def test_a_pause_for_several_refused_launches_is_one_line() -> None:
    w = Logged()
    w.node("n1", cpu=2)
    w.refuse_launches("n1")
    w.tasks(1)
    w.tasks(1)
    w.cycle()
    w.cycle()
    assert w.lines("node avoided") == [warning("node avoided", 0, node="n1", failures=1, pause_seconds=1)]


def test_a_gang_whose_member_is_silent_is_one_line() -> None:
    w = Logged()
    w.nodes(3, cpu=1)
    w.hold_acks("n2")
    job = w.tasks(3)
    w.cycle()
    w.lines()
    w.advance(60)
    reason = "the launch was not acknowledged within 60s"
    assert w.lines() == [
        warning("launch undone", 60, job=job, stage="w", attempt=1, tasks=1, node="n2", again="new", reason=reason),
        warning("node avoided", 60, node="n2", failures=1, pause_seconds=1),
        warning("gang start undone", 60, job=job, stage="w", tasks=2, reason=reason),
    ]


def test_a_whole_job_that_is_taken_back_is_one_line_and_so_is_growth_of_one_stage() -> None:
    w = Logged()
    w.nodes(2, cpu=2)
    w.refuse_launches("n1")
    job = w.submit(gang="job", stages=[{"name": name, "resources": {"cpu": 2}} for name in ("a", "b")])
    w.cycle()
    w.cycle()
    reason = "node n1 refused the launch"
    assert w.lines("gang start undone") == [
        warning("gang start undone", 0, job=job, stage="all", tasks=1, reason=reason)
    ]
    w.return_node("n1")
    w.advance(5)
    w.nodes(2, prefix="m", cpu=2)
    w.refuse_launches("m1")
    w.scale(job, "b", 3)
    w.cycle()
    w.cycle()
    reason = "node m1 refused the launch"
    assert w.lines("gang start undone") == [warning("gang start undone", 5, job=job, stage="b", tasks=1, reason=reason)]


def test_lost_tasks_and_a_stage_that_is_short() -> None:
    w = Logged({"replace_within": "10s"})
    w.nodes(2, cpu=1)
    job = w.tasks(2, on_loss="replace")
    w.cycle()
    w.cycle()
    w.lines()
    w.fail_node("n1")
    w.cycle()
    lost = {"stage": "w", "attempt": 1, "tasks": 1, "node": "n1", "again": "replace", "reason": "node n1 was lost"}
    assert w.lines() == [
        warning("node moved", 0, node="n1", before="up", state="lost"),
        warning("tasks lost", 0, job=job, **lost),
    ]
    w.advance(10)
    short = "it had too few tasks for 10s"
    assert w.lines() == [warning("gang start undone", 10, job=job, stage="w", tasks=1, reason=short)]


def test_tasks_that_do_not_stop() -> None:
    w = Logged({"preempt_grace": "10s"})
    w.node("n1", cpu=2)
    job = w.tasks(2)
    w.advance(1)
    w.ignore_stops(job)
    w.kill(job)
    w.advance(39)
    w.lines()
    w.advance(2)
    fields = {"attempt": 1, "tasks": 2, "indices": [0, 1], "cause": "kill", "after": 40}
    assert w.lines() == [warning("tasks did not stop", 41, job=job, stage="w", node="n1", **fields)]


def test_a_node_that_left_is_still_named() -> None:
    w = Logged({"keep_ended": 0})
    w.node("n1", cpu=1)
    job = w.tasks(1, on_loss="fail")
    w.cycle()
    w.cycle()
    w.lines()
    w.remove_node("n1")
    w.cycle()
    assert not w.partition().jobs  # forgotten in the same cycle
    lost, over, left = w.lines()
    assert left == info("node removed", 0, node="n1")
    assert (lost["event"], lost["node"], lost["again"]) == ("tasks lost", "n1", None)
    assert over == warning(
        "job over",
        0,
        job=job,
        state="failed",
        queue="root.default",
        lasted_seconds=0,
        reason="task w[0] was lost: node n1 was removed",
    )


def test_failed_tasks_and_a_failed_job() -> None:
    w = Logged()
    w.node("n1", cpu=1)
    w.tasks(1, tries=2)
    w.cycle()
    for _ in range(2):
        w.finish("job", exit_code=3)
        w.cycle()
    failed, again, over = w.lines("tasks failed", "job over")
    assert (failed["again"], failed["reason"]) == ("replace", "exit code 3")
    assert (again["again"], again["attempt"]) == (None, 2)
    assert (over["level"], over["reason"]) == ("warning", "task w[0] failed: exit code 3")


def test_an_attempt_that_the_journal_never_gave() -> None:
    w = Logged()
    w.node("n1", cpu=1)
    job = w.tasks(1)
    w.cycle()
    w.lines()
    w.report(job, "w", 0, 9, "running")
    w.cycle()
    [line] = w.lines()
    assert (line["level"], line["event"]) == ("error", "unknown attempt")
    assert "never given by this journal, which is at 1" in line["reason"]


def test_a_report_of_another_nodes_task() -> None:
    w = Logged()
    w.nodes(2, cpu=1)
    job = w.tasks(1)
    w.cycle()
    w.lines()
    w.report(job, "w", 0, 1, "succeeded", node="n1")
    w.cycle()
    [line] = w.lines()
    assert (line["level"], line["event"]) == ("error", "foreign report")
    assert "was given to node n0, not to n1" in line["reason"]


def test_configuration_and_queues() -> None:
    w = Logged()
    w.lines()
    w.configure({"max_batch": 7, "queues": {"root": {"a": {}, "default": {}}}, "pools": {"p": {"node": {"cpu": 1}}}})
    w.cycle()
    w.stop_queue("root.a")
    w.cycle()
    assert w.lines() == [
        info("configuration applied", 0, version=2, changed=["pools", "queues", "settings"]),
        info("queue moved", 0, queue="root.a", before="active", state="stopped"),
    ]


@pytest.mark.parametrize("how", ["failed", "unknown"])
def test_a_writer_that_stops_logs_why_and_nothing_of_its_cycle(how: Any) -> None:
    w = Logged()
    w.lines()
    w.tasks(1)
    w.break_journal(how)
    w.cycle()
    stopped, began = w.lines()
    assert (stopped["level"], stopped["event"]) == ("error", "writer stopped")
    assert "a fault was injected" in stopped["reason"]
    assert (began["event"], began["jobs"]) == ("writer began", 0)


def test_reasons_of_heads_are_logged_at_debug_only() -> None:
    for level, expected in (("debug", ["0 of 2 fit now"]), ("info", [])):
        w = Logged(level=level)
        w.nodes(2, cpu=1)
        w.tasks(2)
        w.cycle()
        w.tasks(2)
        w.cycle()
        assert [line["reason"] for line in w.lines("not placed")] == expected


def test_a_chain_that_is_asked_back() -> None:
    w = Logged({"chain": "100ms"})
    w.node("n0", cpu=1)
    job = w.tasks(4, min=1)
    w.advance(0.02)
    w.finish(job, "w", 0)
    w.cycle()
    w.lines()
    w.drain("n0")
    w.advance(0)
    where = {"job": job, "stage": "w", "node": "n0"}
    _, recalled, returned = w.lines()
    assert recalled == info("tasks recalled", 0.02, tasks=2, **where)
    reason = "node n0 did not start it"
    assert returned == info("tasks returned", 0.02, tasks=2, attempt=1, again="new", reason=reason, **where)
    w.enable("n0")
    w.finish(job, "w", 1)
    w.advance(0)
    sent = {"kind": "new", "attempt": 2, "tasks": 1, "slots": 1}
    assert w.lines("tasks sent ahead") == [info("tasks sent ahead", 0.02, **sent, **where)]


def test_a_removed_partition() -> None:
    out = io.StringIO()
    w = World({"partitions": {"default": {}, "old": {}}}, observers=[Logs(logger_to(out, "json"))])
    w.configure({"partitions": {"default": {}}})
    w.cycle()
    last = json.loads(out.getvalue().splitlines()[-1])
    assert (last["event"], last["partition"]) == ("partition removed", "old")


def test_levels_and_forms(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    out = io.StringIO()
    w = World(observers=[Logs(logger_to(out, "console", "warning"))])
    w.node("n1", cpu=1)
    w.cycle()
    assert out.getvalue() == ""
    w.fail_node("n1")
    w.cycle()
    assert re.search(r"\[warning *\] node moved .* state=lost", out.getvalue())
    assert structlog.get_config() == before and not structlog.is_configured()
    assert capsys.readouterr() == ("", "")


def test_an_order_that_failed_is_a_warning_that_also_quiet_logs_have() -> None:
    w = Logged({"pools": {"cloud": {"max": 2, "node": {"cpu": 1}}}}, level="warning")
    w.tasks(1)
    w.cycle()
    w.fail_order("cloud", "no machines")
    w.cycle()
    assert [line["reason"] for line in w.lines("order failed")] == ["no machines"]


def test_the_page_has_every_line_and_no_other() -> None:
    """An event is a text of several words in the module, or in a function of a change that returns lines."""
    sources = PAGE.parent.parent / "src" / "fairlead"
    said = (sources / "views" / "decision_log.py").read_text(encoding="utf-8")
    for module in (sources / "core" / "changes").glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.returns is not None and "Line" in ast.unparse(node.returns):
                said += ast.unparse(node).replace("'", '"')
    events = set(re.findall(r'"((?:[a-z]+ )+[a-z]+)"', said))
    written = re.findall(r"^\| `([a-z ]+)` \| (?:debug|info|warning|error)", PAGE.read_text(encoding="utf-8"), re.M)
    assert set(written) == events
    assert len(written) == len(events)
