"""The asks for which pools may order nodes: those that admission would let start after all asks before them.

They are in the order of turns in match: down the queue tree by share, and in a leaf by its order. No state is altered.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace, merge

import msgspec

from fairlead.core.admission import Admission
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.entitlement import Entitlements, Uses
from fairlead.core.lanes import Lane, Place
from fairlead.core.match.share_tree import ShareNode, Tree
from fairlead.core.match.user_turns import UserTurn
from fairlead.core.model import Account, Ask, Promise, Stage
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition


class Want(msgspec.Struct, eq=False):
    """Tasks that would start: all together, or one by one."""

    ask: Ask
    needs: list[tuple[Stage, int]]
    together: bool


class Leaf:
    """The asks of a leaf queue in the order of turns. If starts move asks, each turn is one task or one gang."""

    def __init__(self, lanes: list[Lane], uses: Uses) -> None:
        self.moves = lanes[0].queue.order.moves
        """True if asks change their places in the order when tasks start."""
        self._key = lanes[0].key
        self._user = lanes[0].user
        self._uses = uses
        self._walk: Iterator[Ask] = merge(*lanes, key=self._key)
        self._more: dict[str, int] = {}
        """Job → the number of its tasks that have had their turn."""
        self._turns: dict[Account, UserTurn] = {}
        self._heap: list[tuple[Place, Ask]] = []
        if self.moves:
            self._heap = [(self._place(ask), ask) for lane in lanes for ask in lane]
            heapify(self._heap)
        self._now = None if self.moves else next(self._walk, None)

    def current(self) -> Ask | None:
        if not self.moves:
            return self._now
        heap = self._heap
        while heap:
            place, ask = heap[0]
            now = self._place(ask)
            if now == place:
                return ask
            heapreplace(heap, (now, ask))  # other asks of the job or user had turns
        return None

    def go_on(self, taken: Vector, tasks: int, over: bool) -> None:
        """Count tasks of the current ask as started. With `over`, go on to the next ask."""
        if not self.moves:
            self._now = next(self._walk, None) if over else self._now
            return
        ask = self._heap[0][1]
        job, user = ask.stage.job.id, self._user(ask)
        self._more[job] = self._more.get(job, 0) + tasks
        if user is not None:
            self._turn(user).add(taken, 1, tasks)
        if over:
            heappop(self._heap)

    def _place(self, ask: Ask) -> Place:
        """Return the place of an ask in the leaf's order, if all tasks that had their turn were running."""
        user = self._user(ask)
        return self._key(ask, self._more.get(ask.stage.job.id, 0), None if user is None else self._turn(user).use)

    def _turn(self, user: Account) -> UserTurn:
        turn = self._turns.get(user)
        if turn is None:
            turn = self._turns[user] = UserTurn(user, self._uses)
        return turn


def wants_in_turn(partition: Partition, rights: Entitlements) -> Iterator[Want]:
    """Yield the tasks that would start if there were enough capacity, in the order of turns."""
    lanes: dict[str, list[Lane]] = {}
    for lane in partition.lanes.values():
        lanes.setdefault(lane.queue.path, []).append(lane)
    uses = partition.uses(rights)
    leaves = {path: Leaf(lanes_of_leaf, uses) for path, lanes_of_leaf in lanes.items()}
    tree = Tree([partition.queues[path] for path in sorted(leaves)], uses, {})
    admission = Admission(partition, rights)
    given: dict[int, int] = {}
    """Ask → the number of its tasks that have had their turn."""
    branch = tree.next()
    while branch is not None:
        leaf = leaves[branch.queue.path]
        ask = leaf.current()
        while ask is not None:
            wants, over = _turn(admission, ask, given, _most(tree, branch, leaf, ask))
            tasks = sum([tasks for want in wants for _, tasks in want.needs])
            taken: Vector = {}
            for want in wants if branch.rivals or leaf.moves else ():
                for stage, number in want.needs:
                    add(taken, stage.shape.resources, number)
            leaf.go_on(taken, tasks, over)
            yield from wants
            if branch.rivals:
                tree.after(branch, False, taken, 1, tasks)
                break
            ask = leaf.current()
        else:
            tree.after(branch, True, {}, 0, 0)
        branch = tree.next()


def _most(tree: Tree, branch: ShareNode, leaf: Leaf, ask: Ask) -> int:
    if leaf.moves:
        return 1
    return tree.run(branch, ask.stage.shape.resources, ask.count) if branch.rivals else ask.count


def _turn(admission: Admission, ask: Ask, given: dict[int, int], most: int) -> tuple[list[Want], bool]:
    """Return the tasks that start in a turn, and True if the ask needs no further turn."""
    before = given.get(ask.seq, 0)
    if not before:
        if not _may_order(admission.partition, ask):
            return [], True
        together = gang_size(ask)
        if together > 1 or ask.whole:
            needs = minimum_by_stage(ask)
            if admission.refusal(ask, needs) is not None:
                return [], True
            admission.count(ask, needs)
            given[ask.seq] = together
            return [Want(ask, needs, True)], together >= ask.count
    if ask.whole:
        return _rest_of_whole(admission, ask), True
    wants = _admitted(admission, ask, ask.stage, min(most, ask.count - before))
    given[ask.seq] = before + sum(tasks for want in wants for _, tasks in want.needs)
    return wants, not wants or given[ask.seq] >= ask.count


def _rest_of_whole(admission: Admission, ask: Ask) -> list[Want]:
    return [
        want
        for stage in ask.stages
        for want in _admitted(admission, ask, stage, len(stage.wanted(ask.kind)) - stage.needed)
    ]


def _admitted(admission: Admission, ask: Ask, stage: Stage, most: int) -> list[Want]:
    """Return the tasks of a stage, up to `most`, that admission lets start one by one."""
    tasks = most
    if most > 0 and admission.checks_for(stage.job):
        tasks, _ = admission.most(ask, stage, 1, most)
    if tasks <= 0:
        return []
    needs = [(stage, tasks)]
    admission.count(ask, needs)
    return [Want(ask, needs, False)]


def _may_order(partition: Partition, ask: Ask) -> bool:
    """True if nodes may be ordered for an ask.

    They may not for an ask of a resource manager, with a hold or a claim, or with too many failed orders.
    """
    if ask.stage.job.manager or ask.failed_orders >= partition.settings.max_orders:
        return False
    kept = partition.earmark_of(ask.seq) if partition.holds or partition.promises else None
    return kept is None or (isinstance(kept, Promise) and kept.ordered)
