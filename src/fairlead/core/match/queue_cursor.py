"""Turns inside a leaf queue: picks the first head of its open lanes by the queue's order, and closes lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice

from fairlead.core.admission import is_bounded, refusal
from fairlead.core.ahead.easy import NO_CAPACITY, TRY, Backfill
from fairlead.core.asks import gang_size, use_of
from fairlead.core.lanes import Lane, Place, lane_key
from fairlead.core.match.user_turns import UserTurn, count_out_asks
from fairlead.core.memory import UNSEEN, Verdict
from fairlead.core.model import Account, Ask, Micros, Queue
from fairlead.core.policy.turns import Ladder, Level, count_out
from fairlead.core.state import Partition
from fairlead.core.why.never import never_fits
from fairlead.core.why.reasons import OverLimit

BEHIND = 100
"""Asks of a lane that are tried behind a blocked one because they end before a node closes."""


class Line:
    """The asks of one user in a lane; if users do not take turns, the asks of all users."""

    __slots__ = ("asks", "user", "void")

    def __init__(self, user: Account | None, asks: Iterator[Ask]) -> None:
        self.user = user
        self.asks = asks
        """The asks that have not been tried."""
        self.void = False
        """True if asks have moved, so that `asks` is wrong and the next ask is searched from the beginning."""


class QueueCursor:
    """The next ask of each open lane of a leaf queue, in the order of turns."""

    def __init__(
        self,
        partition: Partition,
        leaf: Queue,
        lanes: list[Lane],
        joined: bool = False,
        asleep: Sequence[Lane] = (),
    ) -> None:
        """With `joined`, consider only asks that joined the lanes since they were closed.

        `asleep` has the other lanes of the leaf, if a start can change the order of asks. Their asks count for the
        order but are not tried. Without them the order would be another one after a restart, when no lane sleeps.
        """
        self.partition = partition
        self.leaf = leaf
        self.open: list[tuple[Place, str, Lane, Ask]] = []
        """A heap of the lanes that are not closed yet, each with its next ask."""
        self._by_running = leaf.order.by_running
        self._lines: dict[Lane, list[tuple[Place, Ask, Line]]] = {}
        """Lane → a heap of its lines, each with its next ask."""
        self._turns: dict[Account, UserTurn] | None = None
        """The use of each user; None if fewer than two users take turns."""
        self.by_length = False
        """True if asks have their turns by run time, not by their places."""
        self.moves = False
        """True if starts move asks to other places in the leaf's order."""
        self._jobs_grew = False
        """True if asks of one user have changed places because jobs run more tasks."""
        self._allotted: dict[int, int] = {}
        """Ask → the number of tasks that it starts in its next turn, counted out together with other asks."""
        self._passed: dict[int, None] = {}
        """Asks that were passed over, or that started and are not booked yet."""
        self._verdicts: dict[Lane, Verdict] = {}
        """Lane → what was found so far. Its versions are those when the first ask found no capacity, because a later
        start may release nodes, or when the lane was blocked."""
        self._owners: dict[Lane, list[Ask]] = {}
        """Lane → its asks that may use nodes outside of the index, in order. They are tried even behind a blocked ask:
        asks with earmarked nodes, and those that end before a node closes."""
        self.blocked: dict[Lane, None] = {}
        """Lanes in which only asks with earmarked nodes are still tried."""
        self.full: dict[Lane, None] = {}
        """The blocked lanes in which an ask found no capacity. Asks behind it may use only their earmarked nodes."""
        if partition.nodes.aside and not joined:
            self._find_owners(lanes)
        users: dict[Lane, list[Account | None]] = {lane: lane.users() for lane in (*lanes, *asleep)}
        self.counts = self._by_running
        """True if starts must be reported with `count`."""
        if leaf.order.by_user and len({user for of_lane in users.values() for user in of_lane}) > 1:
            self._take_turns()
        for lane in lanes:
            self._open_lane(lane, users[lane], joined)
        heads = [(lane, lane.head()) for lane in asleep]
        self._asleep = [(self.place(lane, head), lane.text, lane, head) for lane, head in heads if head is not None]
        """A heap of the heads of sleeping lanes whose turn has not come."""
        heapify(self._asleep)

    def _take_turns(self) -> None:
        """Order the asks by the use of their users."""
        self._turns = {}
        self.moves = self.counts = True

    def _open_lane(self, lane: Lane, users: list[Account | None], joined: bool) -> None:
        lane.memory.moved = False
        verdict = self._verdicts[lane] = Verdict()
        if not joined:
            lane.memory.look_at = None  # its asks are tried now
        elif lane.memory.verdict is not None:
            verdict.no_capacity, verdict.limited = lane.memory.verdict.no_capacity, lane.memory.verdict.limited
        lines = [Line(user, iter(_joined(lane)) if joined else lane.line(user)) for user in users]
        firsts = [(ask, line) for ask, line in [(next(line.asks, None), line) for line in lines] if ask is not None]
        if firsts:
            self._lines[lane] = heap = [(self.place(lane, ask), ask, line) for ask, line in firsts]
            heapify(heap)
            heappush(self.open, (heap[0][0], lane.text, lane, heap[0][1]))

    def rest(self) -> Iterator[tuple[Lane, Ask]]:
        """Yield the asks that have had no turn in the open lanes, lane by lane."""
        for _, _, lane, current in self.open:
            if lane in self.blocked:
                yield from ((lane, ask) for ask in (current, *self._owners[lane]))
                continue
            for at, (_, ask, line) in enumerate(self._lines[lane]):
                asks: Iterator[Ask]
                if line.void or lane.memory.moved:
                    asks = (ask for ask in lane.line(line.user) if id(ask) not in self._passed)
                else:
                    asks = chain((current if at == 0 else ask,), line.asks)
                yield from ((lane, ask) for ask in asks)

    def current(self) -> tuple[Lane, Ask]:
        """Return the ask that has the turn. It stays current until the turn ends or its lane is closed."""
        _, _, lane, ask = self.open[0]
        return self._current_moved() if self.moves or lane.memory.moved else (lane, ask)

    def _current_moved(self) -> tuple[Lane, Ask]:
        heap = self.open
        while True:
            key, text, lane, ask = heap[0]
            if self._turns is not None and not self._jobs_grew and not lane.memory.moved:
                turn = self._turns.get(ask.stage.job.accounts[-1])
                if turn is not None and turn.use == key[2]:
                    return lane, ask
            place, following = self.place(lane, ask), ask
            if lane not in self.blocked and (place != key or lane.memory.moved):
                # Its user uses more than before, its job runs more tasks, or its stage has reached `min`.
                place, following = self._first(lane) or (place, ask)
            if place == key:
                return lane, following
            heapreplace(heap, (place, text, lane, following))

    def _first(self, lane: Lane) -> tuple[Place, Ask] | None:
        """Return the first ask of a lane at present, with its place."""
        heap = self._lines[lane]
        if lane.memory.moved:
            users = lane.users()
            if self._turns is None and len(users) > 1:  # tasks of another user were stopped in this match, and wait now
                self._take_turns()
            firsts = [(lane.after(user, self._passed), Line(user, iter(()))) for user in users]
            heap[:] = [(self.place(lane, ask), ask, line) for ask, line in firsts if ask is not None]
            heapify(heap)
            for _, _, line in heap:
                line.void = True
        while heap:
            place, ask, line = heap[0]
            now = self.place(lane, ask)
            if line.void or not (now == place if self._turns is None else _is_same_rank(now, place)):
                line.void = True
                first = lane.after(line.user, self._passed)
                if first is None:
                    heappop(heap)
                    continue
                now, ask = self.place(lane, first), first
            if now == place:
                heap[0] = (place, ask, line)
                return place, ask
            heapreplace(heap, (now, ask, line))
        return None

    def place(self, lane: Lane, ask: Ask) -> Place:
        """Return the place of an ask, counting starts that are not booked yet."""
        if self._turns is None:
            return lane.rank(ask)
        user = ask.stage.job.accounts[-1]
        return lane.key(ask, use=self._turn(user).use)

    def _turn(self, user: Account) -> UserTurn:
        assert self._turns is not None
        turn = self._turns.get(user)
        if turn is None:
            turn = self._turns[user] = UserTurn(user, self.partition.uses())
        return turn

    def count(self, lane: Lane, ask: Ask, placed: int) -> None:
        """Count tasks of the current ask as started."""
        stage = ask.stage
        if self._turns is not None:
            self._turn(stage.job.accounts[-1]).add(*use_of(ask, placed))
        if stage.count == 1:
            self._passed[id(ask)] = None  # its start may be booked later
        if self._by_running and (stage.count > 1 or len(stage.job.stages) > 1):
            self.moves = self._jobs_grew = True  # other asks of the job have new places
            if lane not in self.blocked:
                self._lines[lane][0][2].void = True

    def most(self, lane: Lane, ask: Ask, most: int, fitting: Callable[[list[Ask], int], int]) -> int:
        """Return how many single tasks the current ask may start in its turn, at most `most`.

        Turns of several asks that alternate are counted out together. `fitting(asks, n)` returns how many of n
        tasks may start and fit, no matter to which of the asks they belong.
        """
        if self.leaf.asks == 1 or not (self._by_running or self._turns is not None):
            return most
        allotted = self._allotted.pop(id(ask), 0)
        if allotted:
            return min(allotted, most)
        self._allotted = {}
        if lane in self.blocked:
            return 1
        rival = self._rival(self.place(lane, ask))
        lines = {line.user: self._plain(lane, line.user, ask, most) for _, _, line in self._lines[lane]}
        self._allot(lane, lines, most, rival)
        if len(self._allotted) > 1:
            asks = [other for plain, _ in lines.values() for other in plain if id(other) in self._allotted]
            turns = sum(self._allotted.values())
            able = fitting(asks, turns)
            if able < turns:
                self._allot(lane, lines, able, rival)
        return max(1, self._allotted.pop(id(ask), 1))

    def _rival(self, place: Place) -> Place | None:
        """Return the lowest place of an ask in another lane; None if there is none."""
        places = [entry[0] for entry in self.open[1:3]]
        heap = self._asleep
        while heap:
            key, text, lane, head = heap[0]
            now = self.place(lane, head)
            if now < place:
                heappop(heap)
            elif now != key:
                heapreplace(heap, (now, text, lane, head))
            else:
                places.append(key)
                break
        return min(places, default=None)

    def _plain(self, lane: Lane, user: Account | None, ask: Ask, most: int) -> tuple[list[Ask], bool]:
        """Return a user's first asks for single tasks, with `most` tasks in all, and True if a gang is next instead."""
        plain: list[Ask] = []
        tasks = 0
        for other in lane.line(user):
            if id(other) in self._passed:
                continue
            if tasks >= most:
                break
            if other.whole or gang_size(other) > 1 or (other.round, other.front) != (ask.round, ask.front):
                return plain, True
            plain.append(other)
            tasks += other.count
        return plain, False

    def _allot(
        self, lane: Lane, lines: dict[Account | None, tuple[list[Ask], bool]], turns: int, rival: Place | None
    ) -> None:
        """Count out turns to the asks of a lane, until the turn of a rival lane or of a gang."""
        if self._turns is None:
            ((asks, _),) = lines.values()
            self._allotted = count_out_asks(lane, asks, turns, rival)
            return
        bounds: list[Level] = []
        if rival is not None and rival[:2] == self.open[0][0][:2]:
            bounds.append((int(rival[2]), str(rival[3])))
        ladders: dict[Account, Ladder] = {}
        for user, (asks, stopped) in lines.items():
            assert user is not None
            tasks = min(turns, sum([ask.count for ask in asks]))
            ladders[user] = ladder = self._turn(user).ladder(lane.shapes[0].resources, tasks)
            if stopped:
                bounds.append(ladder.level(tasks))
        if bounds:
            turns = min(turns, max(1, sum([ladder.turns_before(min(bounds)) for ladder in ladders.values()])))
        count_out(list(ladders.values()), turns)
        self._allotted = {}
        for user, ladder in ladders.items():
            if ladder.done:
                self._allotted.update(count_out_asks(lane, lines[user][0], ladder.done))

    def block(self, no_capacity: bool) -> None:
        """Block the lane of the current ask, which found no capacity or was refused for a reason of the whole lane.

        Behind it only asks with earmarked nodes are tried. If the ask found no capacity, they may use no other nodes.
        """
        _, _, lane, ask = self.open[0]
        if no_capacity:
            verdict = self._verdicts[lane]
            verdict.no_capacity = verdict.no_capacity or ask
            self.full[lane] = None
        if lane not in self.blocked:
            self.block_but_owners(lane)
            place = self.place(lane, ask)
            self._owners[lane] = [owner for owner in self._owners.get(lane, ()) if self.place(lane, owner) > place]
        self._next_owner(lane)

    def block_but_owners(self, lane: Lane) -> None:
        """Block a lane: only its asks with earmarked nodes are still tried."""
        if lane not in self.blocked:
            self.blocked[lane] = None
            self._verdicts[lane].versions = self.partition.capacity_versions()

    def go_on(self, after: Ask | None = None) -> None:
        """End the turn. With `after`, the ask that had the turn, the lane continues with it if it has more tasks."""
        heap = self.open
        lane = heap[0][2]
        if self.blocked and lane in self.blocked:
            self._next_owner(lane)
            return
        if lane.memory.moved:
            first = self._first(lane)
            if first is None:
                self.close()
            else:
                heapreplace(heap, (first[0], lane.text, lane, first[1]))
            return
        lines = self._lines[lane]
        line = lines[0][2]
        if line.void:
            following = lane.after(line.user, self._passed)
        elif after is not None and after.stage.asks[after.kind] is after:
            following = after
        else:
            following = next(line.asks, None)
        if following is None:
            heappop(lines)
            if not lines:
                self.close()
                return
        elif len(heap) == len(lines) == 1 and not self.moves:
            heap[0] = (*heap[0][:3], following)  # there is no other lane to compare with
            return
        elif self._turns is None:
            place = lane.rank(following)
            if self._by_running:
                lines[0] = (place, following, line)
            heapreplace(heap, (place, lane.text, lane, following))
            return
        else:
            heapreplace(lines, (self.place(lane, following), following, line))
        heapreplace(heap, (lines[0][0], lane.text, lane, lines[0][1]))

    def pass_over(self, no_capacity: bool = False) -> None:
        """Continue with the next ask of the lane. The current ask keeps its place in the lane."""
        _, _, lane, ask = self.open[0]
        self._passed[id(ask)] = None
        if no_capacity:
            self.note_no_capacity(lane, ask)
        self.go_on()

    def pass_hopeless(self, backfill: Backfill) -> None:
        """Skip asks that certainly cannot start. `Backfill.why_passed` gives their reasons."""
        heap = self.open
        while heap:
            lane, ask = self.current()
            if len(heap) == len(self._lines[lane]) == 1 and not (self.moves or lane.memory.moved):
                self._pass_in_lane(lane, ask, backfill)
                return
            prospect = backfill.prospect(lane, ask)
            if prospect == TRY:
                return
            self.pass_over(no_capacity=prospect == NO_CAPACITY)

    def _pass_in_lane(self, lane: Lane, first: Ask, backfill: Backfill) -> None:
        following, no_capacity = backfill.skip_hopeless(lane, first, self._lines[lane][0][2].asks)
        if no_capacity is not None:
            self.note_no_capacity(lane, no_capacity)
        if following is None:
            self.close()
        else:
            self.open[0] = (*self.open[0][:3], following)

    def note_no_capacity(self, lane: Lane, ask: Ask) -> None:
        """Note that an ask found no capacity. The verdict names the first such ask of the lane."""
        verdict = self._verdicts[lane]
        verdict.no_capacity = self._first_of(lane, verdict.no_capacity, ask)
        if verdict.versions == UNSEEN:
            verdict.versions = self.partition.capacity_versions()

    def note_untried(self, lane: Lane, ask: Ask) -> bool:
        """Note that there is no capacity for an ask that was not tried. False if the ask waits for another reason."""
        reason = refusal(self.partition, ask) or never_fits(self.partition, ask.stage, gang_size(ask))
        if reason is None:
            self.note_no_capacity(lane, ask)
        elif isinstance(reason, OverLimit):
            self.note_limited(lane, ask)
        return reason is None

    def note_limited(self, lane: Lane, ask: Ask) -> None:
        """Note that a limit refused an ask. The verdict names the first such ask of the lane."""
        verdict = self._verdicts[lane]
        verdict.limited = self._first_of(lane, verdict.limited, ask)

    def _first_of(self, lane: Lane, noted: Ask | None, ask: Ask) -> Ask:
        """Return the first of two asks of a lane. Unless asks have turns by length, that is the one noted before."""
        if noted is None:
            return ask
        return ask if self.by_length and self.place(lane, ask) < self.place(lane, noted) else noted

    def _find_owners(self, lanes: list[Lane]) -> None:
        partition = self.partition
        lane_by_id = {id(lane): lane for lane in lanes}
        for earmark in (*partition.holds.values(), *partition.promises.values()):
            ask = partition.ask_of_earmark(earmark)
            lane = lane_by_id.get(id(partition.lanes.get(lane_key(ask)))) if ask is not None else None
            if ask is not None and lane is not None:
                self._owners.setdefault(lane, []).append(ask)
        for lane in lanes if partition.nodes.closing else ():
            asks = (ask for ask in lane if self._ends_in_time(ask) and ask not in self._owners.get(lane, ()))
            self._owners.setdefault(lane, []).extend(islice(asks, BEHIND))
        for lane, owners in self._owners.items():
            owners.sort(key=lane.key)

    def _ends_in_time(self, ask: Ask) -> bool:
        """True if tasks of an ask end before the last of the nodes closes that are drained from a time on."""
        closing, now = self.partition.nodes.closing, self.partition.now
        limits = [stage.terms.time_limit for stage in ask.stages]
        last = max(closing.values(), default=0)
        return any([limit is not None and now + limit <= last for limit in limits])

    def _next_owner(self, lane: Lane) -> None:
        """Continue a blocked lane with its next ask that has earmarked nodes; without one, close the lane."""
        owners = self._owners[lane]
        while owners:
            ask = owners.pop(0)
            owns = self.partition.earmark_of(ask.seq) is not None or self._ends_in_time(ask)
            if ask.stage.asks[ask.kind] is ask and owns:
                heapreplace(self.open, (self.place(lane, ask), lane.text, lane, ask))
                return
        self.close()

    def close(self) -> None:
        """Close the current lane. It sleeps until a change may let one of its asks start."""
        lane = heappop(self.open)[2]
        verdict = self._verdicts[lane]
        ask = verdict.no_capacity
        if ask is not None:
            memory, settings = self.partition.memory, self.partition.settings
            memory.next_starving_at = min(memory.next_starving_at, ask.waiting_since + settings.starving_after + 1)
            memory.next_recall_at = min(memory.next_recall_at, ask.waiting_since + settings.recall_after)
            verdict.closed = lane in self.full
            verdict.bounded = is_bounded(self.partition, ask.stage.job)
        if verdict.versions == UNSEEN:
            verdict.versions = self.partition.capacity_versions()
        if self._turns is not None:
            heads = {user: lane.after(user, ()) for user in lane.users()}
            places = {user: self.place(lane, head) for user, head in heads.items() if head is not None}
            verdict.turns = (self.leaf.uses, order_time(self.partition), sorted(places, key=places.__getitem__))
        lane.memory.verdict = verdict


def order_time(partition: Partition) -> Micros:
    """Return the present time if the order of users depends on it; else 0."""
    return partition.now if partition.settings.share_memory else 0


def _is_same_rank(one: Place, other: Place) -> bool:
    """True if two places differ only in the use of the user."""
    return one[:2] == other[:2] and one[4:] == other[4:]


def _joined(lane: Lane) -> list[Ask]:
    joined = lane.memory.verdict.joined if lane.memory.verdict is not None else ()
    return sorted(joined, key=lane.key) if len(joined) > 1 else list(joined)
