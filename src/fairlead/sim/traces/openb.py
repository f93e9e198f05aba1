"""Alibaba's openb trace: a list of nodes and a list of pods, with CPUs, memory and GPUs, whole or in parts."""

from __future__ import annotations

from fairlead.core.changes import NodeSpec
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, StageSpec
from fairlead.core.reader import check_name
from fairlead.core.resources import CPU, GPU, MEMORY, MILLI
from fairlead.sim.traces.csv_rows import Lines, Table
from fairlead.sim.traces.trace import Arrival, LeftOut, Overrun, seconds, settle_overrun

NODE_COLUMNS = ("sn", "cpu_milli", "gpu")
POD_COLUMNS = ("name", "cpu_milli", "num_gpu")
MIB = 2**20
MODEL = "model"


def read_nodes(lines: Lines, left_out: LeftOut) -> list[tuple[str, NodeSpec]]:
    table = Table(lines)
    table.need(*NODE_COLUMNS)
    nodes: dict[str, NodeSpec] = {}
    for at, row in table:
        try:
            name = check_name(row["sn"], "sn")
            if name in nodes:
                raise ValueError("its name is that of an earlier line")
            capacity = {
                CPU: _count(row, "cpu_milli"),
                MEMORY: _count(row, "memory_mib", 0) * MIB,
                GPU: _count(row, "gpu") * MILLI,
            }
            model = row.get("model", "")
            labels = ((MODEL, model),) if model else ()
            nodes[name] = NodeSpec(tuple(sorted((key, value) for key, value in capacity.items() if value)), labels)
        except (ValueError, Refused) as problem:
            left_out.add(f"node: {problem}", at)
    return list(nodes.items())


def read_pods(lines: Lines, left_out: LeftOut, overrun: Overrun) -> list[Arrival]:
    """Read a list of pods. A pod arrives at its creation, and its run time is from its scheduling to its deletion.

    In a list without times, as for packing, all pods arrive at once and have a run time of 0. Without `gpu_milli`, pods
    ask for whole GPUs.
    """
    table = Table(lines)
    table.need(*POD_COLUMNS)
    arrivals: list[Arrival] = []
    for at, row in table:
        try:
            arrivals.append(_pod(row, overrun))
        except (ValueError, Refused) as problem:
            left_out.add(f"pod: {problem}", at)
    return arrivals


def _pod(row: dict[str, str], overrun: Overrun) -> Arrival:
    name = check_name(row["name"], "name")
    devices = _count(row, "num_gpu")
    milli = _count(row, "gpu_milli", MILLI if devices else 0)
    if devices and not 0 < milli <= MILLI:
        raise ValueError("gpu_milli is not between 1 and 1000")
    if devices > 1 and milli < MILLI:
        raise ValueError("parts of several GPUs")
    asked = {CPU: _count(row, "cpu_milli"), MEMORY: _count(row, "memory_mib", 0) * MIB, GPU: devices * milli}
    created = seconds(row.get("creation_time") or "0")
    begun = seconds(row.get("scheduled_time") or "0") or created
    ended = seconds(row.get("deletion_time") or "0") or begun
    if not 0 <= created <= begun <= ended:
        raise ValueError("its times are out of order")
    # A model may be there twice. Such pods are a request of their own, as in the simulator of the published figures.
    models = tuple(sorted(filter(None, map(str.strip, row.get("gpu_spec", "").split("|")))))
    stage = StageSpec(
        "main",
        1,
        0,
        tuple(sorted((key, value) for key, value in asked.items() if value)),
        ((MODEL, models),) if models else (),
    )
    stage, duration = settle_overrun(stage, ended - begun, overrun)
    spec = JobSpec(name, "openb", row.get("qos", ""), (stage,))
    return Arrival(created, name, spec, (duration,))


def _count(row: dict[str, str], column: str, default: int | None = None) -> int:
    """Return an amount, which spreadsheets may have written as `1000.0`; the default if there is none."""
    text = row.get(column, "").removesuffix(".0")
    if not text and default is not None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise ValueError(f"{column} {text[:40]!r} is not a number")
    return int(text)
