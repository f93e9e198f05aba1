"""One turn: admits an ask, chooses nodes and starts its tasks, or gives the reason why not.

With `near`, `gather` chooses nodes with few different values of a label, for example in few racks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from fairlead.core.admission import Admission
from fairlead.core.asks import Needs, is_single, largest_first, minimum_by_stage
from fairlead.core.changes import Began, Part, Placed, Released, Trimmed
from fairlead.core.holds.earmarks import choose_closing, choose_held, choose_lent, choose_yielded
from fairlead.core.holds.release import is_for_many
from fairlead.core.index.kinds import Choice, NodeIndex
from fairlead.core.index.scored import ScoreIndex
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.last_runs import expected_run
from fairlead.core.match.single_tasks import Singles
from fairlead.core.memory import LaneMemory, Verdict
from fairlead.core.model import Ask, Earmark, Hold, Job, Micros, Place, Promise, Stage
from fairlead.core.plan import Plan
from fairlead.core.ranges import split
from fairlead.core.shape import Shape
from fairlead.core.why.never import never_fits, never_whole
from fairlead.core.why.reasons import NoCapacity, Reason


def gather(index: NodeIndex[Any], shape: Shape, most: int, number: int, home: Collection[str]) -> list[Choice]:
    """Choose nodes for up to `most` tasks: first nodes with the values where the stage already runs (`home`).

    Then comes the value with capacity for the most tasks; of values with capacity for all tasks, the one that needs the
    fewest nodes. There is one search for each value.
    """
    ranked: list[tuple[bool, int, int, str]] = []
    for value in index.values(shape):
        choices = index.choose(shape, most, number, value)
        index.put_back([choice.node_id for choice in choices])
        ranked.append((value not in home, -sum(choice.tasks for choice in choices), len(choices), value))
    chosen: list[Choice] = []
    for *_, value in sorted(ranked):
        more = index.choose(shape, most, number, value)
        chosen += more
        most -= sum(choice.tasks for choice in more)
        if not most:
            break
    return chosen


NOTHING: list[Choice] = []
STARTED = "it has started"

Before = tuple[int, int, bool, list[tuple[LaneMemory, Verdict | None]]]
"""What `undo_tried` restores: a mark of the plan, `openings`, `Starter.released`, verdicts on a job's lanes."""


class Starter:
    """Starts asks in the order of their turns. Every start of a task goes through `start`."""

    def __init__(self, plan: Plan, batches: bool) -> None:
        """With `batches`, starts of single tasks may be booked later, by `flush`."""
        self.plan = plan
        self.admission = Admission(plan.partition)
        index = plan.partition.derived.index
        # Ordered nodes are yielded by the use of queues, which counts only booked starts.
        batches = batches and not any(promise.ordered for promise in plan.partition.promises.values())
        self._singles = Singles(plan, index) if batches else None
        self.full: dict[Shape, Reason] = {}
        """Shape → the reason why no further task of it fits in this cycle."""
        self.released = False
        """True if kept nodes were released, so that asks that had their turn before may use them."""

    def start(self, lane: Lane, ask: Ask, together: int, most: int, own: bool = False) -> tuple[int, Reason | None]:
        """Start one gang, or at most `most` single tasks. Returns the number of tasks started, and why not more.

        With `own`, only nodes that are kept for the ask are used.
        """
        partition, stage, singles = self.plan.partition, ask.stage, self._singles
        checks = self.admission.checks_for(stage.job)
        if checks and singles is not None and any([check.counts_use for check in checks]):
            singles.flush()
        if ask.whole:
            return self._start_whole(ask, together, own)
        if most > 1:
            most = together if together > 1 else min(most, len(stage.wanted(ask.kind)))
        if checks:
            most, reason = self.admission.most(ask, stage, together, most)
            if reason is not None:
                return 0, reason
        if self.full and together == 1 and stage.shape in self.full:
            return 0, self.full[stage.shape]
        if (
            singles is not None
            and most == 1
            and not own
            and not (partition.nodes.held and partition.earmark_of(ask.seq))
            and singles.add(lane, ask)
        ):
            return 1, None
        group = partition.counters.allocation if together > 1 else 0
        placed = self._place(ask, stage, together, most, group, own)
        if placed < together:
            return 0, never_fits(partition, stage, together) or NoCapacity(together, placed)
        return placed, None

    def fitting(self, asks: list[Ask], most: int) -> int:
        """Return how many single tasks of these asks together, at most `most`, may start and fit."""
        partition, shape = self.plan.partition, asks[0].stage.shape
        if partition.nodes.aside or shape.key.near or shape.key.apart:
            return 1  # the capacity depends on the ask
        self.flush()
        for ask in asks:
            if self.admission.checks_for(ask.stage.job):
                most = max(1, min(most, self.admission.most(ask, ask.stage, 1, most)[0]))
        index = partition.derived.index
        chosen = index.choose(shape, most, partition.counters.allocation)
        index.put_back([choice.node_id for choice in chosen])
        return sum([choice.tasks for choice in chosen])

    def flush(self) -> bool:
        """Book the starts that were put off. True if there were any."""
        return self._singles is not None and self._singles.flush()

    def stop_batching(self) -> None:
        """Book each start at once from now on. No start may be put off at this time."""
        self._singles = None

    def before(self, job: Job) -> Before:
        """Return the present state of the plan and of a job's lanes, for `undo_tried`."""
        partition = self.plan.partition
        asks = [ask for stage in job.stages for ask in stage.asks if ask is not None]
        memories = [partition.lanes[lane_key(ask)].memory for ask in asks]
        verdicts = [(memory, memory.verdict) for memory in memories]
        return self.plan.mark(), partition.derived.openings, self.released, verdicts

    def undo_tried(self, before: Before) -> None:
        """Undo starts that were only tried. This wakes no lane, because the capacity was free before."""
        partition = self.plan.partition
        mark, openings, self.released, verdicts = before
        self.plan.undo_tried(mark, openings)
        for memory, verdict in verdicts:
            memory.verdict = verdict  # under some orders a start moves other asks of the job
        partition.derived.index.refresh()

    def _start_whole(self, ask: Ask, together: int, own: bool) -> tuple[int, Reason | None]:
        partition = self.plan.partition
        needs = minimum_by_stage(ask)
        reason = self.admission.refusal(ask, needs)
        if reason is not None:
            return 0, reason
        tried = self._place_in_any_order(ask, needs, own)
        if tried and isinstance(partition.derived.index, ScoreIndex):
            # A stage may be spread over nodes that another stage needs. If tasks are packed tightly, all may fit.
            with partition.derived.index.tightly():
                tried = self._place_in_any_order(ask, needs, own)
        if tried:
            fitting = sum(placed for _, _, placed in tried)
            return 0, never_whole(partition, needs) or NoCapacity(together, fitting, stages=tuple(tried))
        self.plan.do(Began(ask.stage.job.id))
        if partition.earmark_of(ask.seq) is not None:
            self._release(ask.seq, (), STARTED)
        return together, None

    def _place_in_any_order(self, ask: Ask, needs: Needs, own: bool) -> list[tuple[str, int, int]]:
        """Place all stages or none, the hardest first. If they do not fit in that order, try the largest first.

        If a small task with a selector or `apart` is placed first, it may take the only node for a large task. If it is
        placed last, it may find no node. Returns what `_place_all` returns.
        """
        tried = self._place_all(ask, needs, own)
        other = largest_first(needs) if tried else needs
        if other != needs and not self._place_all(ask, other, own):
            return []
        return tried

    def _place_all(self, ask: Ask, needs: Needs, own: bool) -> list[tuple[str, int, int]]:
        """Place all stages or none. Returns stage, wanted and fitting tasks of each stage tried; empty if all fit."""
        partition, before = self.plan.partition, self.before(ask.stage.job)
        group = partition.counters.allocation if sum([needed for _, needed in needs]) > 1 else 0
        tried: list[tuple[str, int, int]] = []
        for stage, needed in needs:
            placed = self._place(ask, stage, needed, needed, group, own)
            tried.append((stage.name, needed, placed))
            if placed < needed:
                self.undo_tried(before)
                return tried
        return []

    def _place(self, ask: Ask, stage: Stage, least: int, most: int, group: int, own: bool) -> int:
        """Place up to `most` tasks, or none if fewer than `least` fit. Returns the number that fit.

        An ask uses its own nodes first, then free ones, then nodes that yield to it.
        """
        plan, partition, shape = self.plan, self.plan.partition, stage.shape
        held = choose_held(partition, stage, ask.kind, most) if partition.nodes.held else []
        wanted = most
        most = 0 if own else most - sum([choice.tasks for choice in held])
        withdrawn = (
            partition.derived.index.withdraw({choice.node: None for choice in stage.live.values()})
            if shape.key.apart and stage.live
            else []
        )
        if shape.key.near and (most > 1 or stage.live):
            rows = [partition.nodes.rows[choice.node] for choice in (stage.live or {}).values()]
            home = {partition.nodes.labels[row].get(shape.key.near, "") for row in rows}
            free = gather(partition.derived.index, shape, most, partition.counters.allocation, home)
        else:
            free = partition.derived.index.choose(shape, most, partition.counters.allocation)
        chosen, yielded = free, NOTHING
        if partition.nodes.held:
            most -= sum([choice.tasks for choice in free])
            lent = choose_lent(partition, stage, most, plan.lent)
            beside = [choice.node_id for choice in lent]
            yielded = choose_yielded(partition, ask, stage, most - sum([choice.tasks for choice in lent]), beside)
            chosen = held + free + lent + yielded
        if partition.nodes.closing:
            left = wanted - sum([choice.tasks for choice in chosen])
            chosen = chosen + choose_closing(partition, stage, left)
        placed = self._place_on(
            stage, ask.kind, least, group, chosen, self._safe_until(ask) if partition.nodes.held else 0
        )
        if partition.nodes.held and placed >= least:
            self._take_kept(ask, held, yielded)
        partition.derived.index.put_back([*withdrawn, *[choice.node_id for choice in chosen]])
        return placed

    def _place_on(
        self, stage: Stage, kind: int, least: int, group: int, chosen: list[Choice], safe_until: Micros
    ) -> int:
        partition = self.plan.partition
        placed = chosen[0].tasks if len(chosen) == 1 else sum([choice.tasks for choice in chosen])
        if placed >= least:
            block = stage.wanted(kind).first(placed)
            attempt = stage.next_attempt(block) if stage.history else stage.floor + 1
            one = len(chosen) == 1
            parts = (Part(chosen[0].node_id, block, chosen[0].devices),) if one else tuple(_parts(chosen, block))
            settings, job = partition.settings, stage.job
            expected = expected_run(partition, stage) if settings.learns and settings.backfills else None
            generation = _generation(stage) if stage.count > 1 or job.whole or stage.generation else 0
            first, position = partition.counters.allocation, stage.position
            self.plan.do(Placed(job.id, position, kind, attempt, first, parts, group, safe_until, expected, generation))
        return placed

    def _safe_until(self, ask: Ask) -> Micros:
        """Return the time before which the started tasks are not stopped for a higher priority; 0 if they may be.

        Protected are tasks that start on held nodes, unless the hold recalls loans, and gangs that start on ordered
        nodes while an ask of a higher priority waits in their queue, which would stop them immediately.
        """
        partition = self.plan.partition
        earmark = partition.earmark_of(ask.seq)
        if earmark is None or (isinstance(earmark, Hold) and earmark.recalled):
            return 0
        if isinstance(earmark, Promise) and not (earmark.ordered and self._passes_higher(ask)):
            return 0
        return partition.now + partition.settings.hold_for

    def _passes_higher(self, ask: Ask) -> bool:
        """True if an ask is a gang and an ask of a higher priority waits in its queue."""
        partition, job = self.plan.partition, ask.stage.job
        if is_single(ask) or not any(other > job.priority for other in partition.derived.priorities):
            return False
        lanes = [lane for lane in partition.lanes.values() if lane.queue is job.queue]
        return any(other.stage.job.priority > job.priority for lane in lanes for other in lane)

    def _take_kept(self, ask: Ask, held: list[Choice], yielded: list[Choice]) -> None:
        """Release the nodes kept for an ask that has started, and those that yielded to it.

        A whole job keeps the nodes of its other stages, and an ask of single tasks those for tasks that still wait.
        """
        partition = self.plan.partition
        earmark = None if ask.whole else partition.earmark_of(ask.seq)
        if earmark is not None:
            waits = ask.stage.asks[ask.kind] is ask and is_single(ask)
            rest = _without(earmark, held) if waits and is_for_many(earmark) else ()
            self._release(ask.seq, rest, STARTED)
        node_ids = [choice.node_id for choice in yielded]
        for seq in sorted({seq for node_id in node_ids for seq in partition.nodes.held.get(node_id, ())}):
            rest = tuple(place for place in partition.promises[seq].places if place[0] not in node_ids)
            self._release(seq, rest, "a job with a better right uses one of its nodes")

    def _release(self, seq: int, rest: tuple[Place, ...], why: str) -> None:
        self.plan.do(Trimmed(seq, rest, why) if rest else Released(seq, why))
        self.plan.partition.derived.index.refresh()
        self.released = True


def _generation(stage: Stage) -> int:
    """Return the number of the gang's start to which tasks placed now belong; 0 if they belong to no gang."""
    if stage.started:
        return stage.generation
    return stage.generation + 1 if stage.generation or stage.job.whole or stage.min > 1 else 0


def _without(earmark: Earmark, used: list[Choice]) -> tuple[Place, ...]:
    """Return the places of an earmark without the tasks that have been placed there."""
    taken = {choice.node_id: choice.tasks for choice in used}
    rest: list[Place] = []
    for node_id, position, tasks in earmark.places:
        left = tasks - min(tasks, taken.get(node_id, 0))
        taken[node_id] = taken.get(node_id, 0) - (tasks - left)
        if left:
            rest.append((node_id, position, left))
    return tuple(rest)


def _parts(chosen: list[Choice], block: tuple[int, ...]) -> Iterator[Part]:
    for node_id, tasks, devices in chosen:
        taken, block = split(block, tasks)
        yield Part(node_id, taken, devices)
