"""Policies of other packages: the module of docs/policies.md, installed as a package, through World and the command
line; the errors when it is missing or broken; and copies of built-in policies under other names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fairlead import policies
from fairlead.core.effects import ForPool
from fairlead.core.policy.fit import HOLD_SCORES, fit
from fairlead.core.policy.order import ORDERS
from fairlead.core.policy.placement import PLACEMENTS, bestfit
from fairlead.core.policy.victim_sets import VICTIMS, newest
from fairlead.core.why.reasons import Reason
from fairlead.journal import SqliteJournal
from fairlead.journal.journal import PolicyMissing
from fairlead.journal.snapshot import make_snapshot
from fairlead.journal.verify import verify
from fairlead.testing import World
from fairlead.views.why_answers import explanation

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
(HARBOUR,) = re.findall(r"^```python harbour\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CONFIG: dict[str, Any] = {
    "place": "roomiest",
    "checks": ["small_crew"],
    "hold_score": "fullest",
    "victims": "least_memory",
    "queues": {"root": {"docks": {"order": "patient"}}},
}
CLI = "from fairlead.cli import main; main()"


def package(folder: Path, name: str, source: str, entries: str) -> Path:
    """Install a module as a package of its own, as an installer would."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(f"[fairlead.policies]\n{entries}\n", encoding="utf-8")
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return package(tmp_path / "site", "harbour", HARBOUR, "harbour = harbour")


def python(site: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), *([str(site)] if site is not None else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def fairlead(site: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(site, "-c", CLI, *arguments)


def config_file(folder: Path) -> str:
    path = folder / "fairlead.yaml"
    path.write_text(json.dumps({"partitions": {"default": CONFIG}}), encoding="utf-8")
    return str(path)


# -- a package, through the command line and World -----------------------------------------------------------------


def test_each_policy_has_about_ten_lines() -> None:
    blocks = re.split(r"\n{3,}", HARBOUR.strip())
    assert len(blocks) == 7
    assert max(len(block.splitlines()) for block in blocks) <= 10


def test_a_configuration_may_name_them(site: Path, tmp_path: Path) -> None:
    file = config_file(tmp_path)
    checked = fairlead(site, "config", "check", file, "--json")
    assert checked.returncode == 0, checked.stderr
    shown = json.loads(checked.stdout)["partitions"]["default"]
    assert (shown["place"], shown["checks"]) == ("roomiest", ["small_crew"])
    assert (shown["hold_score"], shown["victims"]) == ("fullest", "least_memory")
    assert shown["queues"]["root"]["docks"]["order"] == "patient"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"place": "emptiest"},
            'place: "emptiest" is not one of pack, spread, bestfit, dotprod, gpu_packing, gpu_clustering, fgd, priced, '
            "random, roomiest (did you mean roomiest?); write one of them",
        ),
        (
            {"queues": {"root": {"order": "lifo"}}},
            'queues.root.order: "lifo" is not one of priority, fifo, fair, jobs, patient (did you mean fifo?); '
            "write one of them",
        ),
        (
            {"checks": ["small_crew", "large_crew"]},
            'checks[1]: there is no check "large_crew", only small_crew; leave it out or install its package',
        ),
        ({"checks": ["small_crew", "small_crew"]}, 'checks[1]: "small_crew" is there already; write it once'),
    ],
)
def test_unknown_names_are_refused_with_the_list(
    site: Path, tmp_path: Path, document: dict[str, Any], said: str
) -> None:
    path = tmp_path / "fairlead.yaml"
    path.write_text(json.dumps({"partitions": {"default": document}}), encoding="utf-8")
    checked = fairlead(site, "config", "check", str(path), "--json")
    assert checked.returncode == 1
    problem = json.loads(checked.stdout)
    assert f"{problem['field']}: {problem['problem']}" == f"partitions.default.{said}"


def test_without_the_package_the_names_are_unknown(tmp_path: Path) -> None:
    checked = fairlead(None, "config", "check", config_file(tmp_path))
    assert checked.returncode == 1 and '"patient" is not one of priority, fifo, fair, jobs;' in checked.stderr


def test_the_simulator_knows_them(site: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.yaml"
    jobs = [{"submit": at, "id": f"j{at}", "queue": "docks", "stages": [{"count": 3, "duration": 60}]} for at in (0, 1)]
    trace.write_text(json.dumps({"nodes": [{"name": "n", "resources": {"cpu": 8}}], "jobs": jobs}), encoding="utf-8")
    ran = fairlead(site, "simulate", str(trace), "--policy", config_file(tmp_path), "--starts", str(tmp_path / "s.csv"))
    assert ran.returncode == 0, ran.stderr + ran.stdout
    starts = (tmp_path / "s.csv").read_text(encoding="utf-8").splitlines()
    assert len(starts) == 3, "both jobs ran"
    column = starts[0].split(",").index("start_s")
    first, second = (float(line.split(",")[column]) for line in starts[1:])
    assert second - first >= 60, "the crew is too small for both at once"


def test_the_simulator_packs_by_them(site: Path, tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,8000,1024,2,A\nb,16000,1024,2,A\n", encoding="utf-8")
    lines = [f"p{at},1000,1,1,1000,\n" for at in range(4)]
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    pods.write_text(header + "".join(lines), encoding="utf-8")
    wanted = ["--packing", "100", "--shuffles", "1", "--json", "-", "--compare", "pack,roomiest"]
    ran = fairlead(site, "simulate", str(nodes), str(pods), *wanted)
    assert ran.returncode == 0, ran.stderr
    assert [run["policy"] for run in json.loads(ran.stdout)["runs"]] == ["pack", "roomiest"]
    refused = fairlead(None, "simulate", str(nodes), str(pods), *wanted)
    assert refused.returncode == 1 and "there is no placement roomiest" in refused.stderr


def test_world_loads_what_is_installed(site: Path) -> None:
    code = f"from fairlead.testing import World\nw = World({CONFIG!r})\nprint(w.partition().queues['root.docks'].order)"
    ran = python(site, "-c", code)
    assert ran.returncode == 0, ran.stderr
    assert "patient" in ran.stdout


def test_an_entry_point_may_be_a_function_and_they_are_loaded_by_name(tmp_path: Path) -> None:
    source = (
        "from fairlead.policies import order\n"
        "def second():\n    order('later')(lambda *values: ())\n"
        "def first():\n    order('sooner')(lambda *values: ())\n"
    )
    site = package(tmp_path / "site", "pair", source, "b = pair:second\na = pair:first")
    code = (
        "from fairlead import policies\nfrom fairlead.core.policy.order import ORDERS\n"
        "policies.load()\npolicies.load()\nprint(list(ORDERS))"
    )
    ran = python(site, "-c", code)
    assert ran.stdout.strip() == "['priority', 'fifo', 'fair', 'jobs', 'sooner', 'later']", ran.stderr


# -- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        (HARBOUR.replace('"patient"', '"fifo"'), "ValueError: order 'fifo' exists already; use another name"),
        (HARBOUR.replace('"roomiest"', '"pack"'), "ValueError: placement 'pack' exists already; use another name"),
        (
            HARBOUR.replace('"small_crew"', '"Small crew"'),
            "ValueError: 'Small crew' is not a name for a policy (check);",
        ),
    ],
)
def test_a_package_that_fails_stops_the_start(tmp_path: Path, source: str, said: str) -> None:
    site = package(tmp_path / "site", "harbour", source, "docks = harbour")
    for arguments in (
        ("config", "check", config_file(tmp_path)),
        ("server", "--data", str(tmp_path / "data"), "--port", "0"),
    ):
        ran = fairlead(site, *arguments)
        assert ran.returncode == 1, arguments
        text = " ".join(ran.stderr.split())
        assert "entry point docks = harbour of harbour 1.0 (fairlead.policies) failed to load" in text
        assert said in text


def test_a_journal_needs_the_policies_it_was_written_with(tmp_path: Path, own_policies: None) -> None:
    path = tmp_path / "data" / "journal"
    path.parent.mkdir()
    exec(HARBOUR, {"__name__": "harbour"})
    with SqliteJournal(path) as journal:
        w = World(CONFIG, journal=journal)
        w.nodes(2, cpu=4)
        w.submit(name="a", queue="root.docks", stages=[{"count": 6, "min": 1}])
        w.advance(1)
        assert len(w.placements("a")) == 4
    for registry in (PLACEMENTS, ORDERS, policies.CHECKS, HOLD_SCORES, VICTIMS):
        for name in ("roomiest", "patient", "small_crew", "fullest", "least_memory"):
            registry.pop(name, None)  # type: ignore[attr-defined]
    make_snapshot(path, "default")  # replaying asks no policy
    with SqliteJournal(path) as journal:
        assert not [report.problem for report in verify(journal, lambda *_: None) if report.problem]
        with pytest.raises(PolicyMissing) as refusal:
            World(journal=journal)
    said = (
        "partition default: placement roomiest, order patient, check small_crew, hold score fullest, "
        "victims least_memory: not installed here"
    )
    assert str(refusal.value).startswith(said)
    ran = fairlead(None, "server", "--data", str(path.parent), "--port", "0")
    assert ran.returncode == 1
    assert said in " ".join(ran.stderr.split())


# -- what they decide ----------------------------------------------------------------------------------------------


@pytest.fixture
def harbour(own_policies: None) -> None:
    exec(HARBOUR, {"__name__": "harbour"})


def crew(**settings: Any) -> World:
    return World({"checks": ["small_crew"], "queues": {"root": {"docks": {}}}, **settings})


def stage(count: int, name: str = "w", **rest: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "resources": {"cpu": 1}, **rest}


@pytest.mark.usefixtures("harbour")
@pytest.mark.parametrize("settings", [{}, {"backfill": "easy"}, {"place": "roomiest"}])
@pytest.mark.parametrize(
    ("stages", "gang", "jobs", "running"),
    [
        ([stage(1)], "stage", 20, 4),
        ([stage(20, min=1)], "stage", 1, 4),
        ([stage(3)], "stage", 3, 3),
        ([stage(2), stage(2, "x")], "stage", 3, 4),
        ([stage(2), stage(1, "x")], "job", 3, 3),
    ],
    ids=["flood", "array", "gangs", "stages", "whole jobs"],
)
def test_a_check_counts_what_has_started(
    settings: dict[str, Any], stages: list[dict[str, Any]], gang: str, jobs: int, running: int
) -> None:
    w = crew(**settings)
    w.nodes(4, cpu=8)
    names = [w.submit(name=f"j{at}", queue="root.docks", gang=gang, stages=stages) for at in range(jobs)]
    w.advance(1)
    assert sum(len(w.placements(name)) for name in names) == running
    while any(w.placements(name) for name in names):
        job, (part, index) = next((name, key) for name in names for key in w.placements(name))
        w.finish(job, part, index)
        w.advance(1)
        assert sum(len(w.placements(name)) for name in names) <= 4
    assert {w.job(name).state for name in names} == {"succeeded"}


@pytest.mark.usefixtures("harbour")
@pytest.mark.parametrize("stages", [[stage(20, min=1)], [stage(1)]])
def test_a_check_bounds_orders_of_nodes(stages: list[dict[str, Any]]) -> None:
    w = crew()
    w.pool("p", node={"cpu": 1}, max=20)
    for at in range(10):
        w.submit(name=f"j{at}", queue="root.docks", stages=stages)
    w.advance(5)
    orders = [order for effect in w.effects() if isinstance(effect, ForPool) for order in effect.orders]
    assert sum(len(order.names) for order in orders) == 4


@pytest.mark.usefixtures("harbour")
def test_a_check_is_obeyed_from_the_next_configuration_on() -> None:
    w = World({"queues": {"root": {"docks": {}}}})
    w.nodes(2, cpu=8)
    w.submit(name="a", queue="root.docks", stages=[stage(3, min=1)])
    w.cycle()
    w.configure({"checks": ["small_crew"], "queues": {"root": {"docks": {}}}})
    w.submit(name="b", queue="root.docks", stages=[stage(3, min=1)])
    w.advance(1)
    assert len(w.placements("b")) == 1
    w.configure({"queues": {"root": {"docks": {}}}})
    w.advance(1)
    assert len(w.placements("b")) == 3


@pytest.mark.usefixtures("harbour")
def test_a_reason_is_shown_with_its_text_and_its_code() -> None:
    w = crew()
    w.nodes(2, cpu=8)
    job = w.submit(name="a", queue="root.docks", stages=[stage(5)])
    w.cycle()
    text = "queue root.docks runs at most 4 tasks at once"
    assert str(w.explain(job)[0]).endswith(text)
    partition = w.partition()
    (waiting,) = explanation(
        partition, partition.jobs[job], w.cluster.writers["default"].reasons, w.now, lambda job: True
    ).waiting
    assert (waiting.code, waiting.reason) == ("crew busy", text)


def test_a_reason_without_a_text_says_its_name() -> None:
    class TideOut(Reason, frozen=True):
        pass

    assert str(TideOut()) == "tide out"


@pytest.mark.usefixtures("harbour")
def test_an_order_is_obeyed() -> None:
    w = World({"preempt": "off", "hold_for": 0, "queues": {"root": {"docks": {"order": "patient"}}}})
    w.node("n", cpu=1)
    w.submit(name="busy", queue="root.docks", stages=[stage(1)])
    w.cycle()
    for name, priority, wait in (("old", 0, 3600), ("middle", 1, 1), ("eager", 2, 0)):
        w.submit(name=name, queue="root.docks", priority=priority, stages=[stage(1)])
        w.cycle()
        w.advance(wait)
    started: list[str] = []
    for _ in range(3):
        w.finish(next(job for job in ("busy", "old", "middle", "eager") if w.placements(job)))
        w.advance(1)
        started += [job for job in ("old", "middle", "eager") if w.placements(job)]
    assert started == ["eager", "old", "middle"]


# -- equal policies under another name -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_same_policies_under_other_names_decide_the_same(own_policies: None, seed: int) -> None:
    policies.order("even", by_running=True, by_min=True, longest_first=True, by_user=True)(ORDERS["fair"].key)
    policies.order("lowest", by_min=True)(ORDERS["priority"].key)
    policies.placement("tight")(bestfit)
    policies.hold_score("fitting")(fit)
    policies.victims("youngest")(newest)
    names = ("fair", "priority", "bestfit", "fit", "newest")
    built_in = story(seed, dict(zip(names, names, strict=True)))
    renamed = story(seed, dict(zip(names, ("even", "lowest", "tight", "fitting", "youngest"), strict=True)))
    assert built_in == renamed


def story(seed: int, names: dict[str, str]) -> list[object]:
    """Run random work in two queues and a pool. Returns placements and orders after every step."""
    draw = Random(seed)
    w = World(
        {
            "place": draw.choice(["pack", names["bestfit"]]),
            "hold_score": names["fit"],
            "victims": names["newest"],
            "starving_after": "5s",
            "backfill": "easy" if draw.random() < 0.3 else "off",
            "queues": {"root": {"a": {"order": names["fair"]}, "b": {"order": names["priority"]}}},
        }
    )
    w.nodes(3, cpu=4)
    w.pool("p", node={"cpu": 2}, max=6)
    seen: list[object] = []
    for at in range(25):
        stages = [stage(draw.randint(1, 4), "x", estimate=draw.randint(1, 50), on_loss="replace", min=1)]
        stages += [stage(2, "y", estimate=60)] * draw.randint(0, 1)
        queue, priority = draw.choice(["root.a", "root.b"]), draw.choice([0, 0, 1])
        w.submit(name=f"j{at}", queue=queue, priority=priority, stages=stages)
        w.advance(draw.randint(0, 2))
        running = [job for job in (f"j{before}" for before in range(at)) if w.placements(job)]
        if running and draw.random() < 0.6:
            w.finish(draw.choice(running))
        if draw.random() < 0.1:
            w.fail_node("n1")
            w.advance(1)
            w.return_node("n1")
        w.advance(1)
        seen.append([w.placements(f"j{before}") for before in range(at + 1)])
        seen.append([order.names for effect in w.effects() if isinstance(effect, ForPool) for order in effect.orders])
    return seen
