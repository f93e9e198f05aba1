"""The cost of shares: 10,000 leaf queues in which a million tasks wait."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from bench.deciding import ends_of
from bench.harness import Row, loop_seconds, timed
from fairlead.core.commands import AddNode, Command, Configure, MarkReady, RegisterManager, Submit
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.entitlement import Entitlements
from fairlead.core.match.share_tree import Tree
from fairlead.journal.sql import SqliteJournal
from fairlead.writer.gc_settings import spare_the_collector
from fairlead.writer.writer import Writer

TURNS = 10_000


def shares(scale: float) -> Iterator[Row]:
    loop = loop_seconds()
    parents = max(2, round(100 * scale**0.5))
    with tempfile.TemporaryDirectory() as folder:
        writer = _waiting(Path(folder), parents, parents, max(1, round(100 * scale**0.5)))
        usual = gc.get_threshold()
        spare_the_collector()
        yield _turns(writer, loop)
        yield _cycle(writer, loop)
        gc.unfreeze()
        gc.set_threshold(*usual)
        writer.journal.close()


def _turns(writer: Writer, loop: float) -> Row:
    """Measure choosing the next leaf, down the tree and up again, when every leaf has waiting tasks."""
    partition = writer.partition
    leaves = [partition.queues[path] for path in sorted({lane.queue.path for lane in partition.lanes.values()})]
    tree = Tree(leaves, partition.uses(), {})
    shape = next(iter(partition.derived.shapes.values()))

    def choose() -> None:
        for _ in range(TURNS):
            branch = tree.next()
            assert branch is not None
            tree.after(branch, False, shape.resources, 1, 1)

    took, _ = timed(choose)
    per_turn = took / TURNS
    note = f"{len(leaves):,} leaves with work"
    return Row("choosing the next queue", per_turn * 1e6, "µs", 100, False, took / loop, "plain loop", note)


def _cycle(writer: Writer, loop: float) -> Row:
    """Measure a full partition in which one task ends and another starts: new entitlements, a tree, one turn."""
    partition = writer.partition
    effects = writer.cycle([MarkReady(operator=True)], 2).effects
    while writer.more:
        effects += writer.cycle([], 2).effects
    waiting = sum(stage.waiting() for job in partition.jobs.values() for stage in job.stages)
    ends = list(ends_of(effects))[:20]
    took, _ = timed(lambda: [writer.cycle([end], 3) for end in ends])
    leaves = [partition.queues[path] for path in sorted({lane.queue.path for lane in partition.lanes.values()})]

    def work() -> None:
        rights = Entitlements("dominant", partition.nodes.total, partition.nodes.up_count)
        Tree(leaves, partition.uses(rights), {}).next()

    share_work, _ = timed(work)
    cycle = took / len(ends)
    note = (
        f"{waiting:,} tasks wait in {len(leaves):,} leaves; all of a cycle of one end, one start {cycle * 1e3:.1f} ms"
    )
    return Row("share work of a cycle", share_work * 1e3, "ms", 50, False, share_work / loop, "plain loop", note)


def _waiting(folder: Path, parents: int, children: int, tasks: int) -> Writer:
    """Return a writer that is not ready, with queues on two levels and a waiting array in each leaf."""
    tree = {
        f"p{at}": {"share": at % 7 + 1} | {f"q{leaf}": {"share": leaf % 5 + 1} for leaf in range(children)}
        for at in range(parents)
    }
    config = parse_config({"partitions": {"default": {"queues": {"root": tree}}}})["default"]
    writer = Writer(SqliteJournal(folder / "journal"), "default")
    never = RegisterManager(name="never-heard", operator=True)
    node = parse_node({"name": "n", "resources": {"cpu": 8}})[1]
    job = parse_job({"stages": [{"count": tasks, "min": 1, "resources": {"cpu": 1}}]})
    commands: list[Command] = [Configure(config=config, operator=True), never]
    commands += [AddNode(name=f"n{at}", spec=node, operator=True) for at in range(parents)]
    for parent in range(parents):
        for leaf in range(children):
            spec = replace(job, queue=f"root.p{parent}.q{leaf}")
            commands.append(Submit(spec=spec, operator=True))
    for at in range(0, len(commands), 1_000):
        writer.cycle(commands[at : at + 1_000], 1)
    return writer
