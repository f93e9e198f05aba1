"""The placement `priced` at work, the mix that it learns, and both with gangs, holds, backfill, pools and restarts."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.dump import dump, load
from fairlead.core.index.scored import ScoreIndex
from fairlead.core.mix import MAX_OF_STAGE, WEIGHT
from fairlead.core.policy.expected_loss import EXCESS, MICRO, Usual, prices_of, waste_of
from fairlead.core.policy.fit import WHOLE
from fairlead.core.policy.fragmentation import Task
from fairlead.core.policy.placement import FRAGMENTED_STEPS
from fairlead.core.policy.shareprices import UNITS, values_of_room
from fairlead.core.state import MIX_WEIGHT
from fairlead.testing import World


def submit(w: World, name: str, cpu: float = 1, gpu: float = 0, count: int = 1, **rest: Any) -> str:
    resources = {"cpu": cpu, "gpu": gpu} if gpu else {"cpu": cpu}
    return w.submit(name=name, stages=[{"name": "w", "count": count, "resources": resources, **rest}])


def ended(w: World, job: str) -> None:
    w.advance(1)
    w.finish(job)
    w.advance(1)


def nodes_of(w: World, *jobs: str) -> list[str]:
    return [node for job in jobs for _, node in sorted(w.placements(job).items())]


def usual(w: World) -> dict[str, int]:
    """The mix, by the text of the amounts."""
    return {str(dict(key.resources)): weight for key, weight in w.partition().mix.requests}


# -- placing


def test_it_is_the_default_and_nodes_without_gpus_are_packed() -> None:
    w = World()
    w.nodes(2, cpu=4)
    w.node("g", cpu=4, gpu=1)
    jobs = [submit(w, f"j{at}") for at in range(5)]
    w.cycle()
    assert nodes_of(w, *jobs) == ["n0"] * 4 + ["n1"]
    w.advance(1)
    assert "placement `pack`" in w.why(jobs[0]).sentence


def test_a_part_leaves_the_hole_of_a_larger_request() -> None:
    """The example of docs/packing.md, in a world."""
    w = World()
    w.nodes(2, cpu=32, gpu=1)
    first = [submit(w, "seven", gpu=0.7), submit(w, "three", gpu=0.3)]
    w.cycle()
    assert nodes_of(w, *first) == ["n0", "n0"]
    w.finish(first[0])
    w.advance(1)
    third = submit(w, "another-three", gpu=0.3)  # in the hole of n0 it would leave a part that nothing asks for
    w.cycle()
    assert nodes_of(w, third) == ["n1"]
    w.advance(1)
    assert w.why(third).sentence == (
        "job another-three runs on n1, chosen by placement `priced` from the 2 nodes that can run such a task, "
        "where no unusable part of a GPU is left"
    )


def test_whole_nodes_stay_free_for_gangs_of_whole_nodes() -> None:
    w = World()
    w.nodes(4, cpu=32, gpu=4)
    ended(w, submit(w, "learnt", cpu=8, gpu=4, count=2))
    singles = [submit(w, f"one-{at}", gpu=1) for at in range(6)]
    w.cycle()
    gang = submit(w, "gang", cpu=8, gpu=4, count=2)
    w.cycle()
    assert len(set(nodes_of(w, *singles))) == 2
    assert len(set(nodes_of(w, gang))) == 2


def test_a_node_that_is_nearly_free_is_spared_where_tasks_end() -> None:
    w = World()
    for at in range(2):
        w.node(f"n{at}", cpu=32, gpu=4, labels={"host": f"h{at}"})
    for at in range(4):
        ended(w, submit(w, f"large-{at}", cpu=8, gpu=4))
    nearly, fuller = (submit(w, f"g{gpu}", gpu=gpu, selectors={"host": f"h{gpu - 1}"}) for gpu in (1, 2))
    w.cycle()
    assert nodes_of(w, nearly, fuller) == ["n0", "n1"]
    for at in range(2):  # what has ended counts when the mix is learnt
        submit(w, f"cpu-{at}")
        w.cycle()
    assert w.partition().mix.ending == 100 * 16 // 19
    job = submit(w, "one", gpu=1)
    w.cycle()
    assert nodes_of(w, job) == ["n1"]


def test_room_that_lacks_devices_has_value_only_where_tasks_end() -> None:
    large, one = Task((8_000,), 4, WHOLE), Task((1_000,), 1, WHOLE)
    mix = [(large, 1), (one, 4)]

    def more(ending: int, free: int, used: tuple[int, ...]) -> int:
        """By how much a node loses more with one more task."""
        usual = [Usual(task, weight, frozenset({0})) for task, weight in mix]
        (prices,) = prices_of(usual, [{((32_000,), 4): 10}], waste_of(mix), ending)
        after = (*sorted(used[1:], reverse=True), WHOLE)
        return prices.lost((free - 1_000,), after) - prices.lost((free,), used)

    nearly, fuller = (0, 0, 0, WHOLE), (0, 0, WHOLE, WHOLE)
    assert more(0, 30_000, nearly) == more(0, 30_000, fuller)
    assert more(50, 30_000, nearly) > more(50, 30_000, fuller) > 0
    assert more(100, 30_000, nearly) > more(50, 30_000, nearly)
    # Other tasks will also leave CPUs: without any for the large one, three tasks are missing instead of one.
    assert more(100, 30_000, nearly) > more(100, 2_000, nearly) > 0


def test_apart_and_near_are_kept() -> None:
    w = World()
    for at in range(4):
        w.node(f"n{at}", cpu=8, gpu=2, labels={"rack": f"r{at % 2}"})
    apart = submit(w, "apart", gpu=0.5, count=3, apart=True)
    near = submit(w, "near", gpu=1, count=2, near="rack")
    w.cycle()
    assert len(set(nodes_of(w, apart))) == 3
    assert len({node[1:] in ("0", "2") for node in nodes_of(w, near)}) == 1


@pytest.mark.parametrize("gpu", [0, 1])
def test_replicas_share_a_node_unless_they_are_apart(gpu: int) -> None:
    """As docs/placement.md says of services, with GPUs and without."""
    w = World()
    w.nodes(6, cpu=16, **({"gpu": 4} if gpu else {}))
    service = submit(w, "service", gpu=gpu, count=4)
    w.cycle()
    assert set(nodes_of(w, service)) == {"n0"}
    apart = submit(w, "apart", gpu=gpu, count=4, min=1, apart=True)
    w.cycle()
    w.scale(apart, "w", 5)
    w.cycle()
    assert len(set(nodes_of(w, apart))) == 5


def test_work_without_gpus_leaves_cpus_for_idle_gpus() -> None:
    w = World()
    w.node("lean", cpu=16, gpu=4)
    w.node("rich", cpu=32, gpu=4)
    ended(w, submit(w, "learnt", cpu=4, gpu=1, count=4))
    job = submit(w, "cpus", cpu=8)
    w.cycle()
    assert nodes_of(w, job) == ["rich"]


def test_a_resource_that_runs_out_counts_like_cpus() -> None:
    w = World()
    w.node("lean", cpu=64, gpu=4, memory="16Gi")
    w.node("rich", cpu=64, gpu=4, memory="64Gi")
    asks = {"cpu": 1, "gpu": 1, "memory": "10Gi"}
    ended(w, w.submit(name="learnt", stages=[{"name": "w", "count": 4, "resources": asks}]))
    job = w.submit(name="memory", stages=[{"name": "w", "resources": {"cpu": 1, "memory": "12Gi"}}])
    w.cycle()
    assert nodes_of(w, job) == ["rich"]


# -- with other features


def test_held_nodes_stay_held() -> None:
    w = World({"starving_after": "10s", "hold_for": "100s"})
    w.nodes(2, cpu=8, gpu=1)
    small = [submit(w, f"s{at}", gpu=1) for at in range(2)]
    w.advance(0)
    gang = submit(w, "gang", gpu=1, count=2)
    w.advance(11)
    assert set(w.holds()) == {"n0", "n1"}
    later = submit(w, "later", gpu=0.5)
    w.finish(small[0])
    w.advance(0)
    assert not w.placements(later)
    w.finish(small[1])
    w.advance(0)
    assert sorted(nodes_of(w, gang)) == ["n0", "n1"]


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
def test_backfill_passes_a_gang_that_waits(mode: str) -> None:
    w = World({"backfill": mode})
    w.nodes(2, cpu=8, gpu=1)
    long = submit(w, "long", gpu=1, estimate="1h")
    w.advance(0)
    gang = submit(w, "gang", gpu=1, count=2, estimate="1h")
    w.advance(1)
    short, longer = submit(w, "short", gpu=0.5, estimate="10min"), submit(w, "longer", gpu=0.5, estimate="2h")
    w.advance(1)
    assert w.placements(short) and not w.placements(longer) and not w.placements(gang)
    w.finish(short)
    w.finish(long)
    w.advance(1)
    assert len(w.placements(gang)) == 2


def test_a_whole_job_with_stages_that_compete() -> None:
    w = World()
    w.nodes(3, cpu=4, gpu=2)
    job = w.submit(
        name="job",
        gang="job",
        stages=[
            {"name": "parts", "count": 4, "resources": {"cpu": 1, "gpu": 0.5}},
            {"name": "pairs", "count": 2, "resources": {"cpu": 4, "gpu": 2}},
        ],
    )
    w.cycle()
    assert len(w.placements(job)) == 6


def test_parts_share_devices_beside_whole_ones() -> None:
    w = World()
    w.nodes(2, cpu=32, gpu=4)
    for at in range(2):
        ended(w, submit(w, f"learnt-{at}", cpu=4, gpu=2, count=2))
    whole = [submit(w, f"whole-{at}", gpu=1) for at in range(2)]
    parts = [submit(w, f"part-{at}", gpu=0.5) for at in range(4)]
    w.cycle()
    assert len(set(nodes_of(w, *whole))) == len(set(nodes_of(w, *parts))) == 1
    pairs = submit(w, "pairs", cpu=4, gpu=2, count=2)
    w.cycle()
    assert len(w.placements(pairs)) == 2


def test_loans_come_back() -> None:
    w = World({"rebalance_after": "10s", "min_runtime": 0})
    for queue in ("root.own", "root.other"):
        w.queue(queue, share=50)
    w.nodes(2, cpu=32, gpu=4)
    borrowed = w.submit(queue="root.other", stages=[{"array": 8, "resources": {"cpu": 1, "gpu": 1}}])
    w.advance(1)
    assert len(w.placements(borrowed)) == 8
    owner = w.submit(queue="root.own", stages=[{"count": 4, "resources": {"cpu": 1, "gpu": 1}}])
    w.advance(120)
    assert len(w.placements(owner)) == 4


@pytest.mark.parametrize("gpu", ["gpu", "nvidia.com/gpu"])
def test_a_new_node_is_of_the_pool_that_loses_least(gpu: str) -> None:
    w = World()
    for name, cpu in (("lean", 2), ("rich", 32)):
        w.pool(name, node={"cpu": cpu, gpu: 4}, max=4, provider={"command": ["./cloud"]})
    w.submit(name="job", stages=[{"resources": {"cpu": 2, gpu: 1}}])
    w.advance(1)
    assert {name: pool["ordered"] for name, pool in w.pools().items()} == {"lean": 0, "rich": 1}


# -- GPUs of a device plugin, which have no numbers

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"


def pod(w: World, name: str, cpu: float = 1, count: int = 1, **gpus: int) -> str:
    resources = {"cpu": cpu, **{f"{vendor}.com/gpu": amount for vendor, amount in gpus.items()}}
    return w.submit(name=name, stages=[{"name": "w", "count": count, "resources": resources}])


def test_gpus_of_a_plugin_are_placed_by_prices() -> None:
    w = World()
    w.nodes(4, cpu=32, **{NVIDIA: 4})
    for at in range(2):
        ended(w, pod(w, f"learnt-{at}", cpu=8, nvidia=4, count=2))
    jobs = [pod(w, f"one-{at}", nvidia=1) for at in range(6)]
    w.cycle()
    gang = pod(w, "gang", cpu=8, nvidia=4, count=2)
    w.cycle()
    assert len(set(nodes_of(w, *jobs))) == 2 and len(set(nodes_of(w, gang))) == 2
    assert w.partition().mix.gpu == 22_000 and w.why(jobs[0]).sentence.endswith("where no GPU stays idle")
    w.restart()
    assert dump(load(w.dump())) == w.dump()
    w.finish(jobs[0])
    last = pod(w, "last", nvidia=1)
    w.cycle()
    assert nodes_of(w, last) == ["n0"]


def test_pods_without_gpus_leave_cpus_for_idle_gpus() -> None:
    w = World()
    w.node("lean", cpu=16, **{NVIDIA: 4})
    w.node("rich", cpu=32, **{NVIDIA: 4})
    ended(w, pod(w, "learnt", cpu=4, nvidia=1, count=4))
    job = pod(w, "cpus", cpu=8)
    w.cycle()
    assert nodes_of(w, job) == ["rich"]
    w.node("plain", cpu=8)
    other = pod(w, "other", cpu=8)
    w.cycle()
    assert nodes_of(w, other) == ["plain"]


def test_gpus_of_different_plugins_and_of_agents_are_told_apart() -> None:
    w = World()
    w.node("agent", cpu=8, gpu=2)
    w.node("amd", cpu=8, **{AMD: 2})
    w.node("nvidia", cpu=8, **{NVIDIA: 2})
    jobs = [pod(w, "n", nvidia=2), pod(w, "a", amd=2), submit(w, "g", gpu=2)]
    w.cycle()
    assert nodes_of(w, *jobs) == ["nvidia", "amd", "agent"]
    waits = pod(w, "waits", nvidia=1)
    w.update_node("nvidia", **{NVIDIA: 3})
    w.cycle()
    assert nodes_of(w, waits) == ["nvidia"]
    for node in ("agent", "amd", "nvidia"):
        w.remove_node(node)
    w.advance(1)
    assert not w.partition().nodes.with_gpus


def test_mixed_gpus_of_a_node_and_parts_of_those_of_a_plugin_are_still_used() -> None:
    w = World()
    w.node("both", cpu=8, gpu=2, **{NVIDIA: 2})
    w.node("vendors", cpu=8, **{NVIDIA: 2, AMD: 2})
    w.node("whole", cpu=8, **{AMD: 1})
    jobs = [pod(w, "n", nvidia=2), pod(w, "m", nvidia=2), submit(w, "g", gpu=2), pod(w, "a", amd=2)]
    parts = [w.submit(stages=[{"resources": {"cpu": 1, AMD: "500m"}}]) for _ in range(2)]
    w.cycle()
    assert sorted(nodes_of(w, *jobs)) == ["both", "both", "vendors", "vendors"] and len(nodes_of(w, *parts)) == 2


# -- the mix


def test_what_is_learnt() -> None:
    w = World()
    w.node("c", cpu=8)
    submit(w, "early", cpu=2)
    w.cycle()
    assert not w.partition().mix.requests  # no node has GPUs
    w.node("g", cpu=8, gpu=2)
    w.cycle()
    assert usual(w) == {"{'cpu': 2000}": WEIGHT}
    submit(w, "many", gpu=0.5, count=5, min=1)
    w.cycle()
    submit(w, "huge", gpu=1, count=100_000, min=1)
    submit(w, "late", cpu=2)
    w.cycle()
    assert usual(w) == {
        "{'cpu': 2000}": 2 * WEIGHT,
        "{'cpu': 1000, 'gpu': 500}": 5 * WEIGHT,
        "{'cpu': 1000, 'gpu': 1000}": MAX_OF_STAGE * WEIGHT,
    }


def test_it_is_learnt_at_doubled_numbers_of_jobs() -> None:
    w = World()
    w.node("g", cpu=8, gpu=2)
    learnt: list[int] = []
    for at in range(20):
        submit(w, f"j{at}", gpu=1)
        w.cycle()
        if not learnt or w.partition().mix.upto > learnt[-1]:
            learnt.append(w.partition().mix.upto)
    assert [upto - 1 for upto in learnt] == [1, 2, 4, 8, 16]


def test_it_is_learnt_less_often_with_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.core.mix.PERIOD", 2)
    w = World()
    w.nodes(5, cpu=8, gpu=2)
    learnt: list[int] = []
    for at in range(20):
        submit(w, f"j{at}", gpu=0.1)
        w.cycle()
        if not learnt or w.partition().mix.upto > learnt[-1]:
            learnt.append(w.partition().mix.upto)
    assert [upto - 1 for upto in learnt] == [1, 2, 4, 8, 13, 18]


def test_few_nodes_that_join_change_no_prices() -> None:
    """So the nodes of a large fleet are not all scored again whenever one comes or goes."""
    w = World()
    w.nodes(32, cpu=8, gpu=2)

    def prices() -> object:
        w.submit(stages=[{"array": 3, "resources": {"cpu": 1, "gpu": 1}}])
        w.cycle()
        index = w.partition().derived.index
        assert isinstance(index, ScoreIndex)
        return index._prices

    for _ in range(4):  # so that the mix is not learnt in the next two cycles
        before = prices()
    w.node("more", cpu=8, gpu=2)
    assert prices() is before
    w.node("other", cpu=8, gpu=4)
    assert prices() is not before


def test_the_part_that_ended_is_learnt() -> None:
    w = World()
    w.node("g", cpu=8, gpu=4)
    w.cycle()
    service, first = submit(w, "service", gpu=1), submit(w, "first", gpu=3)
    w.cycle()
    assert w.partition().mix.ending == 0
    ended(w, first)
    jobs = [submit(w, f"j{at}", gpu=1, count=3) for at in range(3)]  # what waits tells nothing
    w.cycle()
    assert (w.partition().mix.gpu, w.partition().mix.ending) == (13_000, 100 * 3 // 4)
    w.kill(service)
    for job in jobs:
        ended(w, job)
    for at in range(6):
        submit(w, f"last-{at}")
        w.cycle()
    assert (w.partition().mix.gpu, w.partition().mix.ending) == (13_000, 100)


def test_old_requests_count_less() -> None:
    w = World({"max_placed": 1})
    w.node("g", cpu=8, gpu=2)
    for at in range(40):
        submit(w, f"j{at}", gpu=0.5 if at < 2 else 1, count=1_000, min=1)
        w.cycle()
    (_, old), (_, new) = w.partition().mix.requests
    assert old * 20 < new and old < 2_000 * WEIGHT // 2
    assert MIX_WEIGHT - 2 <= old + new <= 2 * MIX_WEIGHT


def test_preferences_make_no_other_request() -> None:
    w = World()
    w.node("g", cpu=8, gpu=2)
    for at, rest in enumerate(({}, {"near": "rack"}, {"apart": True}, {"prefer": {"zone = a": 1}})):
        submit(w, f"j{at}", gpu=1, **rest)
    w.cycle()
    assert usual(w) == {"{'cpu': 1000, 'gpu': 1000}": 4 * WEIGHT}


shares = st.sampled_from([0, 0.1, 0.25, 0.3, 0.5, 0.7, 1, 2])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), shares, st.integers(1, 3), st.booleans()), min_size=5, max_size=30))
def test_a_restart_changes_no_choice(jobs: list[tuple[int, float, int, bool]]) -> None:
    """Replay, and a state from a snapshot, decide as the server that went on."""

    def play(restart: bool) -> tuple[list[list[str]], bytes]:
        w = World({"max_placed": 100})
        for at in range(6):
            w.node(f"n{at}", cpu=8 + 8 * (at % 3), gpu=2 * (at % 3), labels={"model": f"m{at % 2}"})
        names: list[str] = []
        for at, (cpu, gpu, count, ends) in enumerate(jobs):
            names.append(submit(w, f"j{at}", cpu, gpu, count, min=1, selectors={"model": "m0"} if at % 5 == 4 else {}))
            w.advance(1)
            if ends and w.placements(names[at // 2]):
                w.finish(names[at // 2])
                w.advance(1)
            if restart:
                w.restart()
                assert dump(load(w.dump())) == w.dump()
        return [nodes_of(w, name) for name in names], w.dump()

    (went_on, _), (restarted, _) = play(False), play(True)
    assert went_on == restarted


# -- prices


def test_prices_of_shares() -> None:
    # Two of three fill a device, and so do 70 and 30; 81 leaves 19, which nothing fills.
    values = values_of_room({70: 1, 30: 1}, MICRO)
    assert (
        values[UNITS] == MICRO and values[70] + values[30] == MICRO and values[29] == 0 and values[60] == 2 * values[30]
    )
    assert values_of_room({81: 5}, MICRO)[80:] == [0] + [MICRO] * 20
    assert values_of_room({}, MICRO) == [0] * 101


@given(st.dictionaries(st.integers(1, UNITS), st.integers(1, 1000), max_size=12))
def test_no_set_of_requests_costs_more_than_its_device(asked: dict[int, int]) -> None:
    values = values_of_room(asked, MICRO)
    assert values == sorted(values) and values[0] == 0 and values[UNITS] <= MICRO
    assert not asked or values[UNITS] >= MICRO - 1
    for a in range(UNITS + 1):
        assert all(values[a] + values[b] <= values[a + b] + 1 for b in range(UNITS + 1 - a))


def test_the_tables_are_the_same_on_every_machine() -> None:
    digest = blake2b(repr((EXCESS, FRAGMENTED_STEPS)).encode(), digest_size=8).hexdigest()
    assert digest == "b858afd0e229ad50"
    assert EXCESS[len(EXCESS) // 2] == 398_942 and len(FRAGMENTED_STEPS) == 49 and WHOLE == 1000


def test_a_node_that_loses_its_gpus_is_placed_on_no_more_as_one_with_gpus() -> None:
    w = World({"place": "priced"})
    for name in ("a", "b"):
        w.node(name, cpu=2, gpu=2)
    w.cycle()
    w.submit(stages=[{"array": 2, "resources": {"cpu": 2}}])
    w.advance(1)
    w.update_node("a", gpu=0)
    w.advance(1)
    w.submit(stages=[{"array": 3, "resources": {"cpu": 1, "gpu": 1}}])
    w.advance(1)
    w.remove_node("b")
    w.submit(stages=[{"array": 3, "resources": {"cpu": "500m", "gpu": "0.5"}}])
    w.advance(1)
    assert not w.partition().nodes.gpus[w.partition().nodes.rows[w.partition().nodes.joins["a"]]]


def test_a_task_waits_when_the_only_node_of_its_kind_is_removed() -> None:
    w = World({"place": "priced"})
    w.node("n", cpu=2, gpu=2)
    w.cycle()
    w.submit(stages=[{"resources": {"cpu": 1, "gpu": 1}}])
    w.advance(1)
    w.remove_node("n")
    w.advance(1)
    waits = w.submit(stages=[{"resources": {"cpu": 1}}])
    w.advance(1)
    assert w.job(waits).state == "pending"
