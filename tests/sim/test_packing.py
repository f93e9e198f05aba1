"""Packing: how full a small fleet becomes, worked out by hand."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import Refused
from fairlead.core.policy.placement import placement_names
from fairlead.sim.batch import Packing, run_placements
from fairlead.sim.fill import pack, summary
from fairlead.sim.go_random import GoRandom
from fairlead.sim.traces import LeftOut, Trace
from fairlead.sim.traces.openb import read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def trace_of(nodes: list[tuple[int, int, str]], pods: list[tuple[int, int, int, str]]) -> Trace:
    """Nodes as CPUs, GPUs and model; pods as CPUs, GPUs, milli-GPU and models."""
    node_lines = [f"n{at},{cpu * 1000},1024,{gpu},{model}\n" for at, (cpu, gpu, model) in enumerate(nodes)]
    pod_lines = [f"p{at},{cpu * 1000},1,{gpu},{milli},{spec}\n" for at, (cpu, gpu, milli, spec) in enumerate(pods)]
    left_out = LeftOut()
    trace = Trace(
        "small",
        read_pods(enumerate_lines(PODS + "".join(pod_lines)), left_out, "extend"),
        read_nodes(enumerate_lines(NODES + "".join(node_lines)), left_out),
        left_out,
    )
    assert not len(left_out)
    return trace


def enumerate_lines(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(keepends=True), 1))


@pytest.mark.parametrize("place", placement_names())
def test_what_fits_is_placed_whatever_the_order(place: str) -> None:
    trace = trace_of([(8, 2, "A"), (8, 2, "A"), (8, 0, "")], [(1, 1, 1000, "")] * 4 + [(1, 0, 0, "")])
    for seed in range(5):
        packed = pack(trace, place, 100, seed)
        assert packed is not None and (packed.allocated, packed.failed, packed.fragmented) == (4000, 0, 0.0)
        assert packed.arrived in (4, 5)  # the run ends when the last GPU was asked for


def test_a_pod_that_does_not_fit_fails_and_does_not_block_others() -> None:
    # One pod wants a model that no node has, one more CPUs than any node has; the others fill the node.
    trace = trace_of([(4, 2, "A")], [(1, 1, 1000, "B"), (5, 1, 1000, ""), (1, 1, 1000, ""), (1, 1, 1000, "A")])
    packed = pack(trace, "pack", 200, seed=1)
    assert packed is not None
    assert (packed.allocated, packed.failed, packed.arrived) == (2000, 2, 4)


def test_more_than_the_trace_has_is_drawn_from_it_again() -> None:
    trace = trace_of([(64, 8, "A")], [(1, 1, 250, ""), (1, 1, 1000, "")])
    packed = pack(trace, "bestfit", 130, seed=3)
    assert packed is not None and packed.arrived > 10 and packed.failed > 0
    assert pack(trace, "bestfit", 130, seed=3) == packed
    assert any(pack(trace, "bestfit", 130, seed=seed) != packed for seed in range(4, 8))


def test_idle_gpus_of_no_use() -> None:
    # The first job uses all CPUs of the node, so no other job can use the remaining GPU.
    trace = trace_of([(4, 2, "A")], [(4, 1, 1000, "")])
    packed = pack(trace, "pack", 50, seed=1)
    assert packed is not None and (packed.allocated, packed.fragmented) == (1000, 1.0)
    # Half of the usual work could use a node of this model, for the other half all of it is useless.
    trace = trace_of([(4, 2, "A"), (4, 2, "B")], [(1, 1, 1000, "A"), (1, 1, 1000, "B")])
    packed = pack(trace, "pack", 25, seed=1)
    assert packed is not None and packed.fragmented == pytest.approx(3 / 2)


def test_the_summary_is_of_means() -> None:
    trace = trace_of([(64, 8, "A")], [(1, 1, 250, ""), (1, 1, 1000, "")])
    (result,), whole = run_placements(trace, ["pack"], Packing(130, shuffles=4, seed=7), lambda place, done: False)
    packed = [pack(trace, "pack", 130, seed) for seed in (7, 8, 9, 10)]
    allocated = [each.allocated / 80 for each in packed if each is not None]
    assert whole and result["gpu_allocation_percent"] == round(sum(allocated) / 4, 3)
    assert result["lowest_percent"] == min(allocated) and result["highest_percent"] == max(allocated)
    assert result["unallocated_gpus"] == round(8 - sum(allocated) / 4 * 0.08, 2)


def test_it_may_be_stopped() -> None:
    trace = trace_of([(64, 8, "A")], [(1, 1, 250, "")])
    results, whole = run_placements(trace, ["pack", "fgd"], Packing(100, shuffles=3), lambda _, done: done == 2)
    assert not whole and [(result["policy"], result["shuffles"]) for result in results] == [("pack", 2)]
    assert results[0] == {
        **summary(trace, "pack", 100, [one for seed in (1, 2) if (one := pack(trace, "pack", 100, seed))]),
        "wall_s": results[0]["wall_s"],
        "interrupted": True,
    }


@pytest.mark.parametrize(
    ("place", "nodes", "pods", "problem"),
    [
        ("tetris", [(4, 2, "A")], [(1, 1, 1000, "")], "there is no placement tetris; write pack, "),
        ("pack", [(4, 0, "")], [(1, 1, 1000, "")], "the nodes have no GPUs"),
        ("pack", [(4, 2, "A")], [(1, 0, 0, "")], "no job asks for GPUs"),
    ],
)
def test_refused(
    place: str, nodes: list[tuple[int, int, str]], pods: list[tuple[int, int, int, str]], problem: str
) -> None:
    with pytest.raises(Refused, match=problem):
        pack(trace_of(nodes, pods), place, 100, 1)


def test_the_command(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(f"{NODES}n0,8000,1024,2,A\n")
    pods.write_text(f"{PODS}p0,1000,1,1,500,\n")
    arguments = ["simulate", str(nodes), str(pods), "--packing", "100", "--shuffles", "2", "--compare", "pack,fgd"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    shown = {line[:22].strip(): line[22:].split() for line in done.stdout.splitlines()[1:]}
    assert shown[""] == ["pack", "fgd"] and shown["GPUs allocated"] == ["100.00", "%", "100.00", "%"]
    done = CliRunner().invoke(app, [*arguments, "--json", "-"])
    assert [run["gpu_allocation_percent"] for run in json.loads(done.stdout)["runs"]] == [100.0, 100.0]
    done = CliRunner().invoke(app, [*arguments[:-1], "best"])
    assert done.exit_code == 1 and "there is no placement best" in done.stderr


def test_the_mix_is_learnt_on_the_way() -> None:
    pods = [(1, 1, 700, ""), (1, 1, 300, ""), (4, 1, 1000, ""), (2, 2, 1000, ""), (3, 0, 0, "")] * 40
    trace = trace_of([(32, 4, "A")] * 12, pods)
    known, learnt = (pack(trace, "priced", 130, 42, known=known) for known in (True, False))
    assert known is not None and learnt is not None
    assert known.way[-1][1] == known.allocated and learnt.arrived == known.arrived
    assert abs(known.allocated - learnt.allocated) <= 2_000


def test_the_random_numbers_of_go() -> None:
    """The values are those of `math/rand` in Go 1.26."""
    rng = GoRandom(42)
    assert rng.int63() == 3440579354231278675
    order = list(range(10))
    rng.shuffle(order)
    assert order == [6, 8, 3, 7, 4, 2, 9, 1, 5, 0]
    assert [rng.intn(8152) for _ in range(5)] == [305, 3343, 1559, 6404, 4812] and rng.intn(64) == 45
    assert GoRandom(42).permutation(10) == [7, 5, 8, 9, 2, 1, 6, 0, 3, 4]
    assert GoRandom(1).int63() == 5577006791947779410
