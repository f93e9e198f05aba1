"""The whole truth of one partition. Changes alter it, through a plan; everybody else reads.

What hangs together is kept together here: an allocation touches its node, its stage and every account of its job,
and `book` and `unbook` are the only places that do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush
from typing import Any, NamedTuple

import msgspec

from fairlead.core.entitlement import Entitlements
from fairlead.core.forecast import Forecast
from fairlead.core.index.pack import FitIndex
from fairlead.core.index.scored import ScoreIndex
from fairlead.core.lanes import Lane, LaneKey, lane_key, whole_key
from fairlead.core.model import (
    REPLACE,
    Account,
    Allocation,
    Ask,
    Earmark,
    Hold,
    Job,
    KeptKey,
    Limits,
    Manager,
    Micros,
    NodeOrder,
    Place,
    Pool,
    Promise,
    Queue,
    QueueSettings,
    QueueState,
    Stage,
)
from fairlead.core.nodes import NodeTable
from fairlead.core.policy.placement import PACK
from fairlead.core.ranges import count, indices
from fairlead.core.reign import Reign
from fairlead.core.requestors import Requestors
from fairlead.core.resources import BUILT_IN, SECOND, Vector
from fairlead.core.settings import PartitionSettings
from fairlead.core.shape import Shape, ShapeKey

WILDCARD = "*"

FAR: Micros = 2**62
"""Later than anything."""

CHAIN_RECALL_FACTOR = 10
"""Who waits in a chain for so many times `chain` is asked back: whoever is before it is not as quick as was thought."""


STOP_MARGIN: Micros = 30 * SECOND
"""How much longer than `preempt_grace` a stop may take, for the kill and the report of it."""


class Counters(msgspec.Struct, array_like=True):
    """The next number of each kind. They only grow, also when what was numbered is gone."""

    job: int = 1
    node_id: int = 1
    allocation: int = 1
    ask: int = 1
    front: int = 1
    order: int = 1


class Scaling:
    """What the demand phase found when it last looked, so that it need not look again: derived, never written down."""

    __slots__ = ("dirty", "next_look", "paused", "pools", "shrink_at")

    def __init__(self) -> None:
        self.dirty = True
        """Whether anything has changed since."""
        self.next_look: Micros | None = None
        """Not before this, because there was much to look at; None if it may be at any time."""
        self.shrink_at: Micros | None = None
        """When the next node will have been idle for long enough."""
        self.paused: list[str] = []
        """The pools that were not asked because an order had failed."""
        self.pools = -1
        """For which version of the pools all nodes were looked at."""


class QueueFacts(NamedTuple):
    """Whether any queue of the tree, as it is in this version, has something."""

    queue_version: int
    guarantees: bool
    firm: bool
    """One whose tasks cannot be taken back."""
    limits: bool
    """For itself, or for users or groups in it."""
    checks: dict[object, tuple[Any, object]]
    """For admission: what a job is → the checks that can refuse it, and its accounts, so that no other has their id."""


class Touched:
    """What a cycle's changes reached, so that its checks and effects cost what changed."""

    __slots__ = ("chains", "jobs", "lanes", "nodes", "quick")

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.jobs: dict[str, None] = {}
        self.chains: set[int] = set()
        self.lanes: dict[LaneKey, Lane] = {}
        """The lanes that went. One that is back because what emptied it was only tried is the same one."""
        self.quick: list[int] = []
        """The allocations that were placed of stages whose tasks are quick."""


class Partition:
    def __init__(self, name: str) -> None:
        self.name = name
        self.settings = PartitionSettings()
        self.requestors = Requestors(())
        self.config_version = 0
        self.now: Micros = 0
        """The time of the last journaled cycle, or of the plan that is open."""
        self.reign = Reign()
        self.removed = False
        self.counters = Counters()
        self.queues: dict[str, Queue] = {}
        self.queue_version = 0
        """Grows when a queue comes, goes, or has other settings or another state, and with other checks."""
        self._entitlements: tuple[int, Entitlements] | None = None
        self._facts = QueueFacts(-1, False, False, False, {})
        self.nodes = NodeTable()
        self.jobs: dict[str, Job] = {}
        self.allocations: dict[int, Allocation] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        self.holds: dict[int, Hold] = {}
        """The number of a starving ask → the nodes that are kept for it."""
        self.promises: dict[int, Promise] = {}
        """The number of an ask → the nodes on which room is being made for it."""
        self.unheld_starving = True
        """Whether some may starve already, for whom no nodes are held."""
        self.next_starving_at: Micros = 0
        """Nobody else begins to before this."""
        self.priorities: dict[int, int] = {}
        """How many of the jobs that are known have each priority."""
        self.holds_version = 0
        """Grows with every hold or promise that comes or goes."""
        self.stops = 0
        """Grows when tasks begin to stop, so that their room is coming, and when a stop turns out to be overdue."""
        self.overdue: dict[int, Allocation] = {}
        """The allocations whose tasks were told to stop and have not in time."""
        self.claims_at: Micros = 0
        """Nobody for whom stopping others did not help may try that again before this."""
        self.replan_at: Micros = FAR
        """With backfill, when something will have overrun its estimate that somebody's planned time counts on."""
        self.chains: dict[int, dict[int, Allocation]] = {}
        """Chain → its allocations: those that have its rooms, and those that wait for one."""
        self.forecast: Forecast | None = None
        """When what runs is expected to end; only with backfill."""
        self.backfilled: object = None
        """What backfill found out when it last looked, for the next time."""
        self.pools: dict[str, Pool] = {}
        self.orders: dict[int, NodeOrder] = {}
        """The orders of nodes that are not over."""
        self.order_of: dict[str, int] = {}
        """The name of a node that has yet to come → its order."""
        self.idle: dict[int, Micros] = {}
        """The nodes of pools that can shrink on which there is nothing, by join number → since when."""
        self.unwanted: dict[int, Micros] = {}
        """The nodes that are given back, by join number → since when. They drain, and are empty."""
        self.scaling = Scaling()
        self.managers: dict[str, Manager] = {}
        self.keys: dict[tuple[str, str], KeptKey] = {}
        self.shapes: dict[ShapeKey, Shape] = {}
        self.followers: dict[str, list[str]] = {}
        """Job → the jobs that come after it and still wait for it."""
        self.timers: list[tuple[Micros, int]] = []
        """A heap of when an allocation is to be looked at: unacknowledged, or over its time limit."""
        self.short: dict[tuple[str, int], Micros] = {}
        """(Job, stage) → since when a stage that may be replaced has had too few workers."""
        self.stopped: set[str] = set()
        """The queues that start nothing."""
        self.uneven: dict[str, None] = {}
        """The queues whose children have been too far from their shares for some time."""
        self.draining: set[str] = set()
        """The queues that go when they are empty."""
        self.forgetting: list[tuple[Micros, int, str]] = []
        """A heap of ended jobs that nothing keeps, by their end; entries of jobs that are gone are passed over."""
        self.expiring: list[tuple[Micros, str, str]] = []
        """A heap of idempotency keys by expiry; entries that changed are passed over."""
        self.key_of: dict[str, tuple[str, str]] = {}
        """Job → the key it was submitted with."""
        self.index: FitIndex | ScoreIndex = FitIndex(self.nodes)
        self.pools_version = 0
        self.ever: tuple[tuple[int, int], Vector] | None = None
        """What `explain.capacity_ever` found, and for which nodes and pools."""
        self.openings = 0
        """Grows when room or a limit may have opened; a lane sleeps while it stands."""
        self.touched = Touched()

    def set_settings(self, settings: PartitionSettings) -> None:
        if (settings.place, settings.seed) != (self.settings.place, self.settings.seed):
            pack = settings.place == PACK
            self.index = FitIndex(self.nodes) if pack else ScoreIndex(self.nodes, settings.place, settings.seed)
            for shape in self.shapes.values():
                self.index.add(shape)
        if settings.requestors != self.settings.requestors:
            self.requestors = Requestors(settings.requestors)
        if settings.checks != self.settings.checks:
            self.queue_version += 1  # the facts hold which checks matter to which jobs
        self.settings = settings
        self.forecast = Forecast(self.allocations.values(), self.now) if settings.backfill else None
        self.unheld_starving = True
        self.retime()
        self.wake_all_lanes()

    # -- queues and accounts -------------------------------------------------------------------------------------

    @property
    def root(self) -> Queue:
        return self.queues["root"]

    def add_queue(self, path: str, settings: QueueSettings) -> Queue:
        above, _, name = path.rpartition(".")
        parent = self.queues[above] if above else None
        account = Account(f"queue {path}", None if settings.limit is None else dict(settings.limit), settings.max_jobs)
        queue = Queue(path, name, parent, settings, account)
        self.queues[path] = queue
        self.queue_version += 1
        if parent is not None:
            parent.children[name] = queue
        return queue

    def remove_queue(self, path: str) -> Queue:
        queue = self.queues.pop(path)
        self.queue_version += 1
        self.draining.discard(path)
        self.stopped.discard(path)
        self.uneven.pop(path, None)
        if queue.parent is not None:
            del queue.parent.children[queue.name]
        return queue

    def restore_queue(self, queue: Queue) -> None:
        self.queues[queue.path] = queue
        self.queue_version += 1
        self._list_state(queue)
        self.mark_uneven(queue, queue.uneven_since)
        if queue.parent is not None:
            queue.parent.children[queue.name] = queue

    def move_queue(self, path: str, state: QueueState) -> None:
        queue = self.queues[path]
        queue.state = state
        self.queue_version += 1
        self.wake_all_lanes()
        self._list_state(queue)

    def _list_state(self, queue: Queue) -> None:
        for listed, name in ((self.draining, "draining"), (self.stopped, "stopped")):
            if queue.state == name:
                listed.add(queue.path)
            else:
                listed.discard(queue.path)

    def mark_uneven(self, queue: Queue, since: Micros | None) -> None:
        """Note since when the children of a queue have been too far from their shares, or that they are not."""
        queue.uneven_since = since
        if since is None:
            self.uneven.pop(queue.path, None)
        else:
            self.uneven[queue.path] = None

    def leaves(self) -> Iterator[Queue]:
        for path in sorted(self.queues):
            if not self.queues[path].children:
                yield self.queues[path]

    def entitlements(self) -> Entitlements:
        """What each queue may call its own, as of now."""
        nodes, unit = self.nodes, self.settings.unit
        if self._entitlements is not None:
            queue_version, known = self._entitlements
            same = queue_version == self.queue_version and known.slots == (unit == "slots")
            if same and known.nodes == nodes.up_count and known.capacity == nodes.total:
                return known
        fresh = Entitlements(unit, nodes.total, nodes.up_count)
        self._entitlements = (self.queue_version, fresh)
        return fresh

    def facts(self) -> QueueFacts:
        """What some queue has, and where no queue has it nobody need look for it."""
        if self._facts.queue_version != self.queue_version:
            settings = [queue.settings for queue in self.queues.values()]
            self._facts = QueueFacts(
                self.queue_version,
                guarantees=any(each.guarantee for each in settings),
                firm=not all(each.preemptible for each in settings),
                limits=any(
                    each.limit is not None or each.max_jobs is not None or each.users or each.groups
                    for each in settings
                ),
                checks={},
            )
        return self._facts

    def accounts_for(self, queue: Queue, user: str, groups: tuple[str, ...]) -> tuple[Account, ...]:
        """Every account that a job of this user in this queue is booked on, root first."""
        known = queue.accounts_by_user.get((user, groups))
        if known is not None:
            return known
        line = queue.line()
        group = _group_of(line, groups)
        accounts: list[Account] = []
        for level in line:
            accounts.append(level.account)
            limits = _limits_of(level.settings.users, user)
            if limits is not None:
                accounts.append(_account(level.users, user, f"user {user} in queue {level.path}", limits))
            limits = dict(level.settings.groups).get(group) if group is not None else None
            if group is not None and limits is not None:
                accounts.append(_account(level.groups, group, f"group {group} in queue {level.path}", limits))
        if len(accounts) == len(line):
            # Nobody's but the queues': one tuple for all, so that those who are treated alike are known by it.
            queue.shared = queue.shared or tuple(accounts)
        accounts_by_user = queue.accounts_by_user[user, groups] = (
            queue.shared if len(accounts) == len(line) else tuple(accounts)
        )
        return accounts_by_user

    def rebuild_accounts(self) -> None:
        """Work out all accounts anew after limits of users or groups changed."""
        for queue in self.queues.values():
            queue.users, queue.groups, queue.accounts_by_user, queue.shared = {}, {}, {}, ()
            queue.account.used, queue.account.tasks, queue.account.running = {}, 0, 0
        for job in sorted(self.jobs.values(), key=lambda job: job.number):
            if job.over and not job.allocations:
                continue
            job.accounts = self.accounts_for(job.queue, job.spec.user, job.spec.groups)
            if job.allocations:
                for account in job.accounts:
                    account.running += 1
        for allocation in self.allocations.values():
            if not allocation.rooms:
                charge(allocation.stage.job, allocation.stage.shape, count(allocation.indices))

    # -- shapes and lanes ----------------------------------------------------------------------------------------

    def take_shape(self, key: ShapeKey) -> Shape:
        """The one object for this shape, kept while a stage uses it."""
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape(key)
            self.index.add(shape)
        shape.stages += 1
        return shape

    def leave_shape(self, shape: Shape) -> None:
        shape.stages -= 1
        if not shape.stages:
            del self.shapes[shape.key]
            self.index.forget(shape)

    def wake(self) -> None:
        """Something other than room on a node changed that may let a waiting lane go on."""
        self.openings += 1

    def wake_all_lanes(self) -> None:
        """What may start, and who, is another question now: what was found out about lanes does not hold any more."""
        self.wake()
        for lane in self.lanes.values():
            lane.asleep_at = None

    def wake_lanes(self, stage: Stage) -> None:
        """What a stage asks for changed: what was found out about its lanes does not hold any more."""
        self.wake()
        for ask in stage.asks:
            if ask is not None:
                self.lanes[lane_key(ask)].asleep_at = None

    def lane_of(self, stage: Stage, whole: bool = False) -> Lane | None:
        """The lane in which a stage asks: for itself, or with its whole job."""
        return self.lanes.get(whole_key(stage.job) if whole else (stage.job.queue.path, stage.shape))

    def add_ask(self, ask: Ask) -> None:
        stage = ask.stage
        key: LaneKey = (stage.job.queue.path, stage.shape)
        if ask.whole:
            key = whole_key(stage.job)
            for each in stage.job.stages:
                each.set_ask(ask.kind, ask)
        else:
            stage.set_ask(ask.kind, ask)
        lane = self.lanes.get(key)
        if lane is None:
            shapes = key[1] if isinstance(key[1], tuple) else (key[1],)
            lane = self.touched.lanes.get(key)
            if lane is None:
                lane = Lane(stage.job.queue, shapes)
            self.lanes[key] = lane
        lane.add(ask)

    def drop_ask(self, ask: Ask) -> None:
        stage = ask.stage
        key: LaneKey = (stage.job.queue.path, stage.shape)
        if ask.whole:
            key = whole_key(stage.job)
            for each in stage.job.stages:
                each.set_ask(ask.kind, None)
        else:
            stage.set_ask(ask.kind, None)
        self._leave_lane(key, 1)

    def drop_new(self, queue: Queue, shape: Shape, asks: int) -> None:
        """The same for several asks of one lane that have left their stages already."""
        self._leave_lane((queue.path, shape), asks)

    def _leave_lane(self, key: LaneKey, asks: int) -> None:
        lane = self.lanes[key]
        lane.drop(asks)
        if not lane.size:
            self.touched.lanes[key] = self.lanes.pop(key)

    # -- holds and promises --------------------------------------------------------------------------------------

    def keep(self, kept: Hold | Promise) -> None:
        """Nodes are kept for an ask from here on."""
        if isinstance(kept, Hold):
            self.holds[kept.seq] = kept
        else:
            self.promises[kept.seq] = kept
        self.holds_version += 1
        self.nodes.hold(kept)
        owner = self.kept_for(kept)
        if owner is not None:
            self.lanes[lane_key(owner)].stir()  # a part of a node that others hold too may have room for it now
        if self.settings.backfill:
            self.wake()  # who is the first without room cannot plan with these nodes any more

    def let_go(self, kept: Hold | Promise) -> None:
        """The reverse of `keep`. Somebody else may find room there now."""
        del (self.holds if isinstance(kept, Hold) else self.promises)[kept.seq]
        self.holds_version += 1
        self.nodes.let_go(kept)
        self.unheld_starving = True
        self.wake()

    def keep_other(self, kept: Hold | Promise, places: tuple[Place, ...]) -> None:
        """Keep other places for the same ask, as long as those before."""
        self.nodes.let_go(kept)
        kept.places, kept.checked = places, -1
        self.nodes.hold(kept)
        self.holds_version += 1
        self.unheld_starving = True
        self.wake()

    def _see_held(self, allocation: Allocation) -> None:
        """What has come to a held node since is in the way of others who would hold it too: now, or no more."""
        for seq in self.nodes.held.get(allocation.node, ()):
            hold = self.holds.get(seq)
            if hold is not None and hold.since <= allocation.since:
                self.holds_version += 1

    def kept(self, seq: int) -> Hold | Promise | None:
        """What is kept for an ask: it is held or promised, never both."""
        return self.holds.get(seq) or self.promises.get(seq)

    def kept_for(self, kept: Earmark) -> Ask | None:
        """The ask that nodes are kept for, while it has the place that it had then."""
        job = self.jobs.get(kept.job)
        ask = job.stages[kept.stage].asks[kept.kind] if job is not None else None
        return ask if ask is not None and ask.seq == kept.seq else None

    def waits(self, job: str, stage: int, kind: int) -> Ask | None:
        """What a job asks for, if it still does."""
        known = self.jobs.get(job)
        return known.stages[stage].asks[kind] if known is not None and stage < len(known.stages) else None

    # -- allocations ---------------------------------------------------------------------------------------------

    def book(self, allocation: Allocation) -> None:
        """Enter an allocation everywhere it is known: node, stage, job and accounts."""
        stage = allocation.stage
        job = stage.job
        tasks = count(allocation.indices)
        self.allocations[allocation.id] = allocation
        if allocation.overdue:
            self.overdue[allocation.id] = allocation
        if self.forecast is not None:
            self.forecast.add(allocation, self.now)
        self._arm(allocation)
        used = 0 if allocation.rooms else tasks
        self.nodes.book(allocation, stage.shape, used, allocation.devices)
        if self.holds:
            self._see_held(allocation)
        if stage.live is None:
            stage.live = {}
        if tasks == 1:
            stage.live[allocation.indices[0]] = allocation
        else:
            stage.live.update(dict.fromkeys(indices(allocation.indices), allocation))
        if not job.allocations:
            for account in job.accounts:
                account.running += 1
            job.queue.begin_work(job)
        job.allocations += 1
        job.live += used
        if used:
            charge(job, stage.shape, used)
        if allocation.chain:
            self.link(allocation)
        if not job.listed or job.ended_at is not None:
            self.list_or_unlist(job)
        if job.queue.order.by_running:
            self._resort(job)
        self.touched.nodes.add(allocation.node)
        self.touched.jobs[job.id] = None

    def book_singles(self, allocations: list[Allocation], devices: tuple[int, ...]) -> None:
        """Like `book`, for the first allocations of many jobs: one task each, of one shape, on one node."""
        shape, node_id = allocations[0].stage.shape, allocations[0].node
        when = self.deadline(allocations[0])
        self.nodes.book_all(node_id, allocations, shape, len(allocations), devices)
        self.touched.nodes.add(node_id)
        charged: dict[int, list[Job]] = {}
        """Jobs with the same accounts."""
        begun: dict[int, list[Job]] = {}
        """Those of them that had no allocation."""
        known, timers, touched = self.allocations, self.timers, self.touched.jobs
        moves = allocations[0].stage.job.queue.order.by_running
        for allocation in allocations:
            stage = allocation.stage
            job = stage.job
            known[allocation.id] = allocation
            if when is not None:
                heappush(timers, (when, allocation.id))
            stage.live = {0: allocation}
            accounts = id(job.accounts)
            if not job.allocations:
                begun.setdefault(accounts, []).append(job)
                job.queue.begin_work(job)
            job.allocations += 1
            job.live += 1
            charged.setdefault(accounts, []).append(job)
            touched[job.id] = None
            if moves:
                self._resort(job)
            if self.forecast is not None:
                self.forecast.add(allocation, self.now)
        for jobs in begun.values():
            for account in jobs[0].accounts:
                account.running += len(jobs)
        for jobs in charged.values():
            charge(jobs[0], shape, len(jobs))

    def unbook(self, allocation: Allocation, moves: bool = False) -> None:
        """The reverse of `book`: the whole allocation leaves. If it only moves on to another state, no room opens."""
        stage = allocation.stage
        job = stage.job
        tasks = count(allocation.indices)
        del self.allocations[allocation.id]
        self.overdue.pop(allocation.id, None)
        if self.forecast is not None:
            self.forecast.drop(allocation)
        used = 0 if allocation.rooms else tasks
        if used and not moves:
            self.openings += 1
        self.nodes.unbook(allocation, stage.shape, used, allocation.devices)
        if self.holds:
            self._see_held(allocation)
        assert stage.live is not None
        if tasks == len(stage.live):
            stage.live = None
        elif tasks == 1:
            del stage.live[allocation.indices[0]]
        else:
            for index in indices(allocation.indices):
                del stage.live[index]
        job.allocations -= 1
        job.live -= used
        if not job.allocations:
            for account in job.accounts:
                account.running -= 1
            job.queue.end_work(job)
        if used:
            charge(job, stage.shape, -used)
        if allocation.chain:
            self.unlink(allocation)
        if job.over:
            self.list_or_unlist(job)
        if job.queue.order.by_running:
            self._resort(job)
        self.touched.nodes.add(allocation.node)
        self.touched.jobs[job.id] = None

    def unbook_singles(self, allocations: list[Allocation]) -> None:
        """Like `unbook`, for the only allocations of many jobs that are asked for no more."""
        charged: dict[tuple[int, Shape], list[Job]] = {}
        touched = self.touched
        for allocation in allocations:
            stage = allocation.stage
            job = stage.job
            del self.allocations[allocation.id]
            if self.forecast is not None:
                self.forecast.drop(allocation)
            self.nodes.unbook(allocation, stage.shape, 1, allocation.devices)
            if self.holds:
                self._see_held(allocation)
            stage.live = None
            job.allocations = job.live = 0
            job.queue.end_work(job)
            charged.setdefault((id(job.accounts), stage.shape), []).append(job)
            touched.nodes.add(allocation.node)
            touched.jobs[job.id] = None
        for (_, shape), jobs in charged.items():
            for account in jobs[0].accounts:
                account.running -= len(jobs)
            charge(jobs[0], shape, -len(jobs))
        self.openings += 1

    def exchange(self, after: Allocation) -> None:
        """Tasks move on to another state in the same room: the allocation takes the place of the one of its number."""
        stage = after.stage
        self.allocations[after.id] = after
        if after.overdue:
            self.overdue[after.id] = after
        else:
            self.overdue.pop(after.id, None)
        if self.forecast is not None and self.forecast.move(after, self.now) and self.replan_at < FAR:
            self.replan_at = self.now
        self._arm(after)
        self.nodes.allocations[self.nodes.rows[after.node]][after.id] = after
        assert stage.live is not None
        stage.live.update(dict.fromkeys(indices(after.indices), after))
        if after.chain:
            self.link(after)
        self.touched.nodes.add(after.node)
        self.touched.jobs[stage.job.id] = None

    def _arm(self, allocation: Allocation) -> None:
        when = self.deadline(allocation)
        if when is not None:
            heappush(self.timers, (when, allocation.id))
            if len(self.timers) > 2 * len(self.allocations) + 1_000:
                self.retime()  # what ended long before its time would stay until then

    def link(self, allocation: Allocation) -> None:
        """Enter an allocation in its chain."""
        self.chains.setdefault(allocation.chain, {})[allocation.id] = allocation
        self.touched.chains.add(allocation.chain)

    def unlink(self, allocation: Allocation) -> None:
        chain = self.chains[allocation.chain]
        del chain[allocation.id]
        if not chain:
            del self.chains[allocation.chain]
        self.touched.chains.add(allocation.chain)

    def waiting_in(self, chain: int) -> list[Allocation]:
        """Those of a chain that wait for a room, the first first."""
        known = self.chains.get(chain, {})
        return [known[number] for number in sorted(known) if known[number].rooms]

    def deadline(self, allocation: Allocation) -> Micros | None:
        """When an allocation has to be acknowledged, to be back, to have got a room, to have ended, or stopped."""
        if allocation.state == "assigned":
            settings = self.settings
            patience = settings.launch_timeout
            if allocation.rooms and not allocation.cause:
                patience = CHAIN_RECALL_FACTOR * settings.chain
            return self.reign.counts_from(allocation.since) + patience
        limit = allocation.stage.terms.time_limit
        if allocation.state == "running" and limit is not None and allocation.started is not None:
            return allocation.started + limit
        if allocation.state == "stopping" and not allocation.overdue:
            return max(allocation.since, self.reign.ready_at) + self.settings.preempt_grace + STOP_MARGIN
        return None

    def become_ready(self) -> None:
        self.reign.ready = True
        self.reign.ready_at = self.now
        self.retime()

    def retime(self) -> None:
        """Work out all deadlines anew, after a setting they depend on changed."""
        times = ((self.deadline(each), each.id) for each in self.allocations.values())
        self.timers = sorted((when, number) for when, number in times if when is not None)

    def update_short(self, stage: Stage) -> None:
        """See whether a stage has too few workers now."""
        if stage.short_since is None and stage.pending[REPLACE] is None and not stage.below_min:
            return
        short = is_short(stage)
        if short != (stage.short_since is not None):
            self.mark_short(stage, self.now if short else None)
        else:
            self.update_missing(stage)

    def update_missing(self, stage: Stage) -> None:
        """See whether a stage needs replacements to reach `min`, and give these the place that they have now."""
        below = stage.pending[REPLACE] is not None and stage.missing() > 0
        if below != stage.below_min:
            stage.below_min = below
            ask = stage.asks[REPLACE]
            if ask is not None:
                self.lanes[lane_key(ask)].move(ask)

    def mark_short(self, stage: Stage, since: Micros | None) -> None:
        """Note since when a stage has had too few workers, or that it has enough. An undo comes here last."""
        self.update_missing(stage)
        stage.short_since = since
        if since is None or stage.terms.on_loss != "replace":
            self.short.pop((stage.job.id, stage.position), None)
        else:
            self.short[stage.job.id, stage.position] = since
            self.unheld_starving = True  # those who replace the lost ones may have waited for too long already

    def _resort(self, job: Job) -> None:
        """Give asks of a job the places they have now, where the order looks at what runs."""
        for stage in job.stages:
            for ask in stage.asks:
                if ask is not None:
                    self.lanes[lane_key(ask)].touch(ask)

    def list_or_unlist(self, job: Job) -> None:
        """Count a job with its queue while it wants or uses something there."""
        listed = job.ended_at is None or job.allocations > 0
        if listed != job.listed:
            job.queue.jobs += 1 if listed else -1
            job.listed = listed
            if not listed:
                self.may_forget(job)

    def may_forget(self, job: Job) -> None:
        """A job that ended, and that nothing keeps any more, is forgotten when its time has come."""
        if job.ended_at is not None and not job.allocations and job.id not in self.followers:
            heappush(self.forgetting, (job.ended_at, job.number, job.id))

    # -- what callers are remembered by --------------------------------------------------------------------------

    def keep_key(self, user: str, key: str, entry: KeptKey) -> None:
        both = (user, key)
        before = self.keys.get(both)
        if before is not None and before.job:
            self.key_of.pop(before.job, None)
        self.keys[both] = entry
        if entry.job:
            self.key_of[entry.job] = both  # the same object: there may be as many as there are jobs
        if entry.expires is not None:
            heappush(self.expiring, (entry.expires, user, key))

    def drop_key(self, user: str, key: str) -> KeptKey:
        entry = self.keys.pop((user, key))
        self.key_of.pop(entry.job, None)
        return entry

    def count_priority(self, priority: int, jobs: int) -> None:
        """So many more jobs of a priority are known, or fewer."""
        known = self.priorities.get(priority, 0) + jobs
        if known:
            self.priorities[priority] = known
        else:
            del self.priorities[priority]

    # -- small questions -----------------------------------------------------------------------------------------

    def unmet(self, job: Job) -> tuple[str, ...]:
        """The jobs it comes after that have not succeeded yet. One that is forgotten had succeeded."""
        if not job.after:
            return ()
        return tuple(name for name in job.after if name in self.jobs and self.jobs[name].state != "succeeded")

    def known_resources(self) -> list[str]:
        """The resources that some node or pool has."""
        known = {*BUILT_IN, *(name for name, nodes in self.nodes.offered.items() if nodes)}
        for pool in self.pools.values():
            known.update(name for name, _ in pool.settings.node)
        return sorted(known)


def is_short(stage: Stage) -> bool:
    """Whether a gang that started lost workers and has fewer than it needs. What it wants to grow by is no loss.

    A stage that is short stays so until those who replace the lost ones are acknowledged: a node that refuses each of
    them would keep it short for ever.
    """
    if stage.pending[REPLACE] is None and stage.short_since is None:
        return False
    if not stage.started or stage.job.over or stage.job.manager:
        return False
    coming = 0
    if stage.short_since is not None and stage.live:
        coming = sum(1 for each in stage.live.values() if each.kind == REPLACE and each.state == "assigned")
    if not coming and stage.pending[REPLACE] is None:
        return False
    return stage.running() - coming < stage.needed_before_growth


def charge(job: Job, shape: Shape, tasks: int) -> None:
    """Add the use of so many tasks (or take it away, below 0) on every account of a job."""
    for account in job.accounts:
        account.tasks += tasks
        used = account.used
        for name, amount in shape.amounts:
            now = used.get(name, 0) + amount * tasks
            if now:
                used[name] = now
            else:
                del used[name]


def headroom(accounts: tuple[Account, ...]) -> Vector:
    """What may still be used: the least of every account's room, over the resources limited anywhere."""
    room: Vector = {}
    for account in accounts:
        for name, limit in (account.limit or {}).items():
            left = max(0, limit - account.used.get(name, 0))
            room[name] = min(room.get(name, left), left)
    return room


def _group_of(line: list[Queue], groups: tuple[str, ...]) -> str | None:
    # Leaf to root, the first of the user's groups with a limit; the wildcard comes after the named ones of a level.
    for queue in reversed(line):
        named = {name for name, _ in queue.settings.groups}
        for group in groups:
            if group in named:
                return group
        if WILDCARD in named:
            return WILDCARD
    return None


def _limits_of(limits: tuple[tuple[str, Limits], ...], name: str) -> Limits | None:
    table = dict(limits)
    return table.get(name, table.get(WILDCARD))


def _account(accounts: dict[str, Account], key: str, name: str, limits: Limits) -> Account:
    account = accounts.get(key)
    if account is None:
        limit = None if limits.limit is None else dict(limits.limit)
        account = accounts[key] = Account(name, limit, limits.max_jobs)
    return account
