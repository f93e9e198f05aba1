"""The state of one partition: its records, lanes, earmarks and bookings. Only changes alter it, through a plan.

An allocation is booked on its node, its stage and all accounts of its job. Only `book`, `book_singles`, `unbook`,
`unbook_singles` and `exchange` update these bookings.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush

import msgspec

from fairlead.core.ahead.expected_ends import Forecast
from fairlead.core.derived import Derived, QueueFacts
from fairlead.core.entitlement import Entitlements, Uses
from fairlead.core.index.pack import FitIndex
from fairlead.core.index.scored import ScoreIndex
from fairlead.core.lanes import Lane, LaneKey, lane_key, whole_key
from fairlead.core.memory import LaneMemory, Memory
from fairlead.core.model import (
    FAR,
    REPLACE,
    Account,
    After,
    Allocation,
    Ask,
    Closure,
    Condition,
    Earmark,
    Hold,
    Job,
    KeptKey,
    Limits,
    Manager,
    Micros,
    Mix,
    NodeOrder,
    Pairs,
    Place,
    Pool,
    Promise,
    Queue,
    QueueSettings,
    QueueState,
    Runs,
    RunsKey,
    Stage,
    Strange,
)
from fairlead.core.node_table import NodeTable
from fairlead.core.policy.decay import TASKS, booked_use, past_use, total_weight
from fairlead.core.policy.placement import PACK, PLACEMENTS
from fairlead.core.ranges import Ranges, count, indices
from fairlead.core.readiness import Readiness
from fairlead.core.requestors import Requestors
from fairlead.core.resources import BUILT_IN, SECOND, Vector
from fairlead.core.settings import PartitionSettings
from fairlead.core.shape import Shape, ShapeKey

WILDCARD = "*"

CHAIN_RECALL_FACTOR = 10
"""Tasks that wait in a chain for longer than 10 × `chain` are recalled: the tasks ahead are slower than measured."""

MAX_RUNS = 10_000
"""The number of users and names whose last run times are kept; the oldest are dropped first."""

MIX_WEIGHT = 640_000
"""The mix has at most twice this weight."""
MAX_MIX = 1_000
"""The number of different requests that the mix has at most; the rarest are dropped."""

STOP_MARGIN: Micros = 30 * SECOND
"""The time after `preempt_grace` for the kill and its report. A stop that takes longer is overdue."""


class Counters(msgspec.Struct, array_like=True):
    """The next number of each kind of record. Numbers are never reused."""

    job: int = 1
    node_id: int = 1
    allocation: int = 1
    ask: int = 1
    front: int = 1
    order: int = 1


class Touched:
    """The records that the changes of a cycle touched."""

    __slots__ = ("chains", "jobs", "lanes", "nodes", "quick")

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.jobs: dict[str, None] = {}
        self.chains: set[int] = set()
        self.lanes: dict[LaneKey, Lane] = {}
        """Lanes that became empty. A rollback that fills one again uses the same object."""
        self.quick: list[int] = []
        """Numbers of placed allocations of stages with quick tasks."""


class Partition:
    """The state of one partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings = PartitionSettings()
        self.config_version = 0
        self.now: Micros = 0
        """The time of the last journaled cycle, or of the open plan."""
        self.removed = False
        self.landmark: Micros = 0
        """With `share_memory`, the start of the time scale of the weights of past use."""
        self.counters = Counters()
        self.era = 0
        """How often older data took effect: by a restore, or by a promotion of a standby that may lack records."""
        self.skipped = Ranges()
        """The job numbers that were skipped when an era began, because lost records may have given them."""
        self.queues: dict[str, Queue] = {}
        self.uneven: dict[str, None] = {}
        """Queues whose children are too far from their shares."""
        self.nodes = NodeTable()
        self.jobs: dict[str, Job] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        """The asks of the jobs, in order."""
        self.allocations: dict[int, Allocation] = {}
        self.holds: dict[int, Hold] = {}
        """Number of an ask → the nodes that are held for it."""
        self.promises: dict[int, Promise] = {}
        """Number of an ask → the nodes on which capacity is coming for it."""
        self.pools: dict[str, Pool] = {}
        self.orders: dict[int, NodeOrder] = {}
        """Open orders of nodes."""
        self.order_of: dict[str, int] = {}
        """Name of an ordered node that has not joined → number of its order."""
        self.idle: dict[int, Micros] = {}
        """Id of an idle node of a pool with a provider → since when it is idle."""
        self.closures: dict[Pairs, Closure] = {}
        """Labels → until when nodes with all of them are disabled."""
        self.unwanted: dict[int, Micros] = {}
        """Id of a node that is being given back → since when. The node is idle and draining."""
        self.managers: dict[str, Manager] = {}
        self.runs: dict[RunsKey, Runs] = {}
        """With learned estimates, the last runs of users and names."""
        self.mix = Mix()
        """What jobs usually ask for, if nodes have GPUs."""
        self.strange: dict[tuple[int, str], Strange] = {}
        """(Job number, stage) → tasks that run although this journal never started them."""
        self.keys: dict[tuple[str, str], KeptKey] = {}
        """(User, idempotency key) → the answer."""
        self.derived = Derived(self.nodes)
        self.memory = Memory()
        self.readiness = Readiness()
        self.touched = Touched()
        self._forecast_ends()

    def forget(self) -> None:
        """Clear the results that phases remember between cycles."""
        self.memory = Memory()
        for lane in self.lanes.values():
            lane.memory = LaneMemory()

    def set_settings(self, settings: PartitionSettings) -> None:
        if settings.requestors != self.settings.requestors:
            self.derived.requestors = Requestors(settings.requestors)
        self.settings = settings
        self.use_index()
        self.derived.queue_version += 1  # `facts` caches which checks apply to which jobs
        self._forecast_ends()
        self.memory.unheld_starving = True
        self.retime()
        self.wake_all_lanes()

    def _forecast_ends(self) -> None:
        """Make the forecast that backfill needs."""
        settings = self.settings
        self.derived.forecast = (
            Forecast(self.allocations.values(), self.now, settings.learns) if settings.backfills else None
        )

    @property
    def backfills(self) -> bool:
        """True if asks may pass one without capacity now: with `backfill`, unless no task that runs has a known end."""
        return self.derived.forecast is not None and (bool(self.derived.forecast) or not self.allocations)

    @property
    def knows_all_ends(self) -> bool:
        """With `backfill`, True if each running task is expected to end at a known time."""
        return self.derived.forecast is not None and len(self.derived.forecast) == len(self.allocations)

    def use_index(self) -> None:
        """Use the index of nodes for the placement in the settings. Prices are for nodes with GPUs, so that without any
        the index is that of `pack`."""
        place, seed = self.settings.place, self.settings.seed
        if self.derived.indexed == (place, seed):
            return
        if place in PLACEMENTS and PLACEMENTS[place].prices and not self.nodes.with_gpus:
            place, seed = PACK, 0
        if self.derived.indexed != (place, seed):
            self.derived.indexed = (place, seed)
            self.derived.index = FitIndex(self.nodes) if place == PACK else ScoreIndex(self.nodes, place, seed)
            for shape in self.derived.shapes.values():
                self.derived.index.add(shape)
            self.set_mix(self.mix)

    def set_mix(self, mix: Mix) -> None:
        self.mix = mix
        if isinstance(self.derived.index, ScoreIndex):
            self.derived.index.learn(mix)

    def set_pools(self, pools: dict[str, Pool]) -> None:
        self.pools = pools
        self.nodes.costs = {name: pool.settings.cost for name, pool in pools.items()}
        self.derived.index.rank_again()
        self.derived.pools_version += 1
        self.wake()

    # -- queues and accounts -------------------------------------------------------------------------------------

    @property
    def root(self) -> Queue:
        return self.queues["root"]

    def add_queue(self, path: str, settings: QueueSettings) -> Queue:
        above, _, name = path.rpartition(".")
        parent = self.queues[above] if above else None
        account = Account(f"queue {path}", None if settings.limit is None else dict(settings.limit), settings.max_jobs)
        account.booked = {} if self.settings.share_memory else None
        queue = Queue(path, name, parent, settings, account)
        self.queues[path] = queue
        self.derived.queue_version += 1
        if parent is not None:
            parent.children[name] = queue
        return queue

    def remove_queue(self, path: str) -> Queue:
        queue = self.queues.pop(path)
        self.derived.queue_version += 1
        self.derived.draining_queues.discard(path)
        self.derived.stopped_queues.discard(path)
        self.uneven.pop(path, None)
        if queue.parent is not None:
            del queue.parent.children[queue.name]
        return queue

    def restore_queue(self, queue: Queue) -> None:
        self.queues[queue.path] = queue
        self.derived.queue_version += 1
        self._list_state(queue)
        self.mark_uneven(queue, queue.uneven_since)
        if queue.parent is not None:
            queue.parent.children[queue.name] = queue

    def move_queue(self, path: str, state: QueueState) -> None:
        queue = self.queues[path]
        queue.state = state
        self.derived.queue_version += 1
        self.wake_all_lanes()
        self._list_state(queue)

    def _list_state(self, queue: Queue) -> None:
        for listed, name in ((self.derived.draining_queues, "draining"), (self.derived.stopped_queues, "stopped")):
            if queue.state == name:
                listed.add(queue.path)
            else:
                listed.discard(queue.path)

    def mark_uneven(self, queue: Queue, since: Micros | None) -> None:
        """Set since when the children of a queue have been too far from their shares; None if they are not."""
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
        """Return the present entitlements of all queues, cached."""
        nodes, unit = self.nodes, self.settings.unit
        if self.derived.entitlements is not None:
            queue_version, cached = self.derived.entitlements
            same = queue_version == self.derived.queue_version and cached.slots == (unit == "slots")
            if same and cached.nodes == nodes.up_count and cached.capacity == nodes.total:
                return cached
        fresh = Entitlements(unit, nodes.total, nodes.up_count)
        self.derived.entitlements = (self.derived.queue_version, fresh)
        return fresh

    def facts(self) -> QueueFacts:
        """Return which features queues use, so that code for unused features can be skipped. Cached."""
        if self.derived.facts.queue_version != self.derived.queue_version:
            all_settings = [queue.settings for queue in self.queues.values()]
            self.derived.facts = QueueFacts(
                self.derived.queue_version,
                guarantees=any(settings.guarantee for settings in all_settings),
                firm=not all(settings.preemptible for settings in all_settings),
                limits=any(
                    settings.limit is not None or settings.max_jobs is not None or settings.users or settings.groups
                    for settings in all_settings
                ),
                shares=any(
                    len(queue.children) > 1
                    and any(child.settings.share is not None for child in queue.children.values())
                    for queue in self.queues.values()
                ),
                checks={},
            )
        return self.derived.facts

    def accounts_for(self, queue: Queue, user: str, groups: tuple[str, ...]) -> tuple[Account, ...]:
        """Return all accounts on which a job of this user in this queue is booked, root first. Cached."""
        accounts = queue.accounts_by_user.get((user, groups))
        if accounts is None:
            accounts = tuple(self._accounts_of(queue, user, groups))
            if len(accounts) == len(queue.line()):
                # Only accounts of queues: such users share one tuple, so its identity shows that they are equal.
                accounts = queue.shared = queue.shared or accounts
            queue.accounts_by_user[user, groups] = accounts
        return accounts

    def _accounts_of(self, queue: Queue, user: str, groups: tuple[str, ...]) -> Iterator[Account]:
        line = queue.line()
        group = _group_of(line, groups)
        for level in line:
            yield level.account
            if _limits_of(level.settings.users, user) is not None and not (level is queue and queue.order.by_user):
                yield self.account_of(level, user)
            limits = dict(level.settings.groups).get(group) if group is not None else None
            if group is not None and limits is not None:
                yield _account(level.groups, group, f"group {group} in queue {level.path}", limits)
        if queue.order.by_user:
            yield self.account_of(queue, user)  # the last account, see `Lane`

    def account_of(self, queue: Queue, user: str) -> Account:
        """Return the account of a user in a queue that limits the user, or in which users take turns."""
        account = queue.users.get(user)
        if account is None:
            limits = _limits_of(queue.settings.users, user) or NO_LIMITS
            account = _account(queue.users, user, f"user {user} in queue {queue.path}", limits)
            account.booked = {} if self.settings.share_memory and queue.order.by_user else None
        return account

    def rebuild_accounts(self) -> None:
        """Compute all accounts again, after a change of limits of users or groups, or of turns of users."""
        pasts = self.pasts()
        for queue in self.queues.values():
            queue.users, queue.groups, queue.accounts_by_user, queue.shared = {}, {}, {}, ()
            queue.account.used, queue.account.tasks, queue.account.running = {}, 0, 0
        # Ended jobs are included, because a rollback may revive them.
        for job in sorted(self.jobs.values(), key=lambda job: job.number):
            job.accounts = self.accounts_for(job.queue, job.spec.user, job.spec.groups)
            if job.allocations:
                for account in job.accounts:
                    account.running += 1
        for allocation in self.allocations.values():
            if not allocation.slots:
                self._charge(allocation.stage.job, allocation.stage.shape, count(allocation.indices))
        self.set_pasts(pasts)
        self.resort([queue for queue in self.queues.values() if queue.order.by_user])

    def resort(self, queues: list[Queue]) -> None:
        """Sort the lanes of some queues again, including lanes that became empty in this cycle."""
        for lane in (*self.lanes.values(), *self.touched.lanes.values()):
            if any(lane.queue is queue for queue in queues):
                lane.resort()

    # -- past use ------------------------------------------------------------------------------------------------

    def weight(self) -> int:
        """Return the total weight of past time; 0 if past use does not count."""
        half_life = self.settings.share_memory
        return total_weight(self.now - self.landmark, half_life) if half_life else 0

    @staticmethod
    def use_with_tasks(account: Account) -> Vector:
        """Return the present use of an account, with its tasks under the key `TASKS`."""
        return {**account.used, TASKS: account.tasks} if account.tasks else account.used

    def past_of(self, account: Account) -> Vector:
        """Return the past use of an account, multiplied by `weight`, with its tasks under the key `TASKS`."""
        if account.booked is None:
            return {}
        return past_use(self.use_with_tasks(account), account.booked, self.weight())

    def uses(self, rights: Entitlements | None = None) -> Uses:
        """Return the measure of use for turns, with the present entitlements unless others are given."""
        return Uses(rights or self.entitlements(), self.weight(), self.past_of)

    def use_of(self, account: Account) -> int:
        """Return the use of a queue or user by which turns are ordered."""
        return self.uses().counted(account.used, account.tasks, self.past_of(account))

    def remembered(self) -> Iterator[tuple[str, str, Account]]:
        """Yield the accounts whose past use counts, with queue path and user (empty for a queue), in order."""
        for path, queue in sorted(self.queues.items()):
            if queue.account.booked is not None:
                yield path, "", queue.account
            for user, account in sorted(queue.users.items()) if queue.order.by_user else ():
                if account.booked is not None:
                    yield path, user, account

    def pasts(self) -> dict[tuple[str, str], Vector]:
        """Return the past use of all accounts that have one, by queue path and user."""
        pasts = {(path, user): self.past_of(account) for path, user, account in self.remembered()}
        return {key: past for key, past in pasts.items() if past}

    def set_pasts(self, pasts: dict[tuple[str, str], Vector]) -> None:
        """Set the past use of all accounts whose past use counts. Accounts that are not listed have none."""
        for path, user in pasts:
            queue = self.queues.get(path)
            if queue is not None and user and queue.order.by_user:
                self.account_of(queue, user)
        weight = self.weight()
        for path, user, account in self.remembered():
            account.booked = booked_use(self.use_with_tasks(account), pasts.get((path, user), {}), weight)

    def set_memory(self, on: bool) -> None:
        """Turn past use of accounts on or off. `set_pasts` must follow."""
        for queue in self.queues.values():
            queue.account.booked = {} if on else None
            for account in queue.users.values():
                account.booked = {} if on and queue.order.by_user else None

    # -- shapes and lanes ----------------------------------------------------------------------------------------

    def take_shape(self, key: ShapeKey) -> Shape:
        """Return the object of this shape, and count one more stage that uses it."""
        shape = self.derived.shapes.get(key)
        if shape is None:
            shape = self.derived.shapes[key] = Shape(key)
            self.derived.index.add(shape)
        shape.stages += 1
        return shape

    def leave_shape(self, shape: Shape) -> None:
        shape.stages -= 1
        if not shape.stages:
            del self.derived.shapes[shape.key]
            self.derived.index.forget(shape)

    def capacity_versions(self) -> tuple[int, int]:
        """Return the versions of capacity and nodes. One of them grows when a waiting ask may find capacity."""
        return self.derived.openings, self.nodes.version

    def wake(self) -> None:
        """Let match try the sleeping lanes again, after a change other than freed capacity on a node."""
        self.derived.openings += 1

    def wake_all_lanes(self) -> None:
        """Clear the verdicts on all lanes, after a change that may affect any of them."""
        self.wake()
        for lane in self.lanes.values():
            lane.memory.verdict = None

    def wake_lanes(self, stage: Stage) -> None:
        self.wake()
        for ask in stage.asks:
            if ask is not None:
                self.lanes[lane_key(ask)].memory.verdict = None

    def lane_of(self, stage: Stage, whole: bool = False) -> Lane | None:
        """Return the lane of a stage's own asks or, with `whole`, of the ask of its whole job."""
        return self.lanes.get(whole_key(stage.job) if whole else (stage.job.queue.path, stage.shape))

    def add_ask(self, ask: Ask) -> None:
        key = lane_key(ask)
        self._set_ask(ask, ask)
        lane = self.lanes.get(key) or self.touched.lanes.get(key)
        if lane is None:
            shapes = key[1] if isinstance(key[1], tuple) else (key[1],)
            lane = Lane(ask.stage.job.queue, shapes, self.use_of)
        self.lanes[key] = lane
        lane.add(ask)

    def drop_ask(self, ask: Ask) -> None:
        self._set_ask(ask, None)
        self.leave_lane(lane_key(ask), 1)

    def _set_ask(self, ask: Ask, entry: Ask | None) -> None:
        if ask.whole:
            for stage in ask.stages:
                stage.set_ask(ask.kind, entry)
        else:
            ask.stage.set_ask(ask.kind, entry)

    def leave_lane(self, key: LaneKey, asks: int) -> None:
        """Count asks as gone from their lane, because their stages have dropped them."""
        lane = self.lanes[key]
        lane.drop(asks)
        if not lane.size:
            self.touched.lanes[key] = self.lanes.pop(key)

    # -- holds and promises --------------------------------------------------------------------------------------

    def add_earmark(self, earmark: Hold | Promise) -> None:
        if isinstance(earmark, Hold):
            self.holds[earmark.seq] = earmark
        else:
            self.promises[earmark.seq] = earmark
        self.derived.holds_version += 1
        self.nodes.hold(earmark)
        owner = self.ask_of_earmark(earmark)
        if owner is not None:
            self.lanes[lane_key(owner)].stir()  # the owner may fit now, with nodes that other asks cannot use
        if self.backfills:
            self.wake()  # plans may depend on these nodes

    def remove_earmark(self, earmark: Hold | Promise) -> None:
        """Remove an earmark. Other asks may fit on its nodes then."""
        del (self.holds if isinstance(earmark, Hold) else self.promises)[earmark.seq]
        self.derived.holds_version += 1
        self.nodes.remove_earmark(earmark)
        self.memory.checked_earmarks.pop(earmark.seq, None)
        self.memory.unheld_starving = True
        self.wake()

    def move_earmark(self, earmark: Hold | Promise, places: tuple[Place, ...]) -> None:
        """Earmark other places for the same ask; the age of the earmark stays."""
        self.nodes.remove_earmark(earmark)
        earmark.places = places
        self.memory.checked_earmarks.pop(earmark.seq, None)
        self.nodes.hold(earmark)
        self.derived.holds_version += 1
        self.memory.unheld_starving = True
        self.wake()

    def _see_held(self, allocation: Allocation) -> None:
        """Raise `holds_version` if an allocation is newer than a hold on its node, because holds depend on both."""
        for seq in self.nodes.held.get(allocation.node, ()):
            hold = self.holds.get(seq)
            if hold is not None and hold.since <= allocation.since:
                self.derived.holds_version += 1

    def earmark_of(self, seq: int) -> Hold | Promise | None:
        """Return the hold or promise of an ask. An ask never has both."""
        return self.holds.get(seq) or self.promises.get(seq)

    def ask_of_earmark(self, earmark: Earmark) -> Ask | None:
        """Return the ask for which nodes are kept; None if it was dropped or replaced."""
        job = self.jobs.get(earmark.job)
        ask = job.stages[earmark.stage].asks[earmark.kind] if job is not None else None
        return ask if ask is not None and ask.seq == earmark.seq else None

    def waits(self, job: str, stage: int, kind: int) -> Ask | None:
        """Return the waiting ask of a job's stage and kind; None if there is none."""
        record = self.jobs.get(job)
        return record.stages[stage].asks[kind] if record is not None and stage < len(record.stages) else None

    # -- allocations ---------------------------------------------------------------------------------------------

    def book(self, allocation: Allocation) -> None:
        """Add an allocation to its node, stage, job and accounts."""
        stage = allocation.stage
        job = stage.job
        tasks = count(allocation.indices)
        self.allocations[allocation.id] = allocation
        if allocation.overdue:
            self.derived.overdue[allocation.id] = allocation
        if self.derived.forecast is not None:
            self.derived.forecast.add(allocation, self.now)
        self._arm(allocation)
        used = 0 if allocation.slots else tasks
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
            self._charge(job, stage.shape, used)
        if allocation.chain:
            self.link(allocation)
        if not job.listed or job.ended_at is not None:
            self.list_or_unlist(job)
        self._touch(allocation, job)

    def book_singles(self, allocations: list[Allocation], devices: tuple[int, ...]) -> None:
        """Book the first allocations of many jobs: one task each, of one shape, on one node."""
        shape, node_id = allocations[0].stage.shape, allocations[0].node
        when = self.deadline(allocations[0])
        self.nodes.book_all(node_id, allocations, shape, len(allocations), devices)
        self.touched.nodes.add(node_id)
        charged: dict[int, list[Job]] = {}
        """Identity of accounts → their jobs."""
        begun: dict[int, list[Job]] = {}
        """Identity of accounts → their jobs that had no allocation before."""
        by_number, timers, touched = self.allocations, self.derived.timers, self.touched.jobs
        by_running = allocations[0].stage.job.queue.order.by_running
        for allocation in allocations:
            stage = allocation.stage
            job = stage.job
            by_number[allocation.id] = allocation
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
            if by_running:
                self._resort(job)
            if self.derived.forecast is not None:
                self.derived.forecast.add(allocation, self.now)
        for jobs in begun.values():
            for account in jobs[0].accounts:
                account.running += len(jobs)
        for jobs in charged.values():
            self._charge(jobs[0], shape, len(jobs))

    def unbook(self, allocation: Allocation, moves: bool = False) -> None:
        """Undo `book`. With `moves`, the tasks are then booked in another state, so no capacity becomes free."""
        stage = allocation.stage
        job = stage.job
        tasks = count(allocation.indices)
        del self.allocations[allocation.id]
        self.derived.overdue.pop(allocation.id, None)
        if self.derived.forecast is not None:
            self.derived.forecast.drop(allocation)
        used = 0 if allocation.slots else tasks
        if used and not moves:
            self.derived.openings += 1
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
            self._charge(job, stage.shape, -used)
        if allocation.chain:
            self.unlink(allocation)
        if job.over:
            self.list_or_unlist(job)
        self._touch(allocation, job)

    def _touch(self, allocation: Allocation, job: Job) -> None:
        if job.queue.order.by_running:
            self._resort(job)
        self.touched.nodes.add(allocation.node)
        self.touched.jobs[job.id] = None

    def unbook_singles(self, allocations: list[Allocation]) -> None:
        """Undo `book` for the only allocations of many jobs with one task."""
        charged: dict[tuple[int, Shape], list[Job]] = {}
        touched = self.touched
        for allocation in allocations:
            stage = allocation.stage
            job = stage.job
            del self.allocations[allocation.id]
            if self.derived.forecast is not None:
                self.derived.forecast.drop(allocation)
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
            self._charge(jobs[0], shape, -len(jobs))
        self.derived.openings += 1

    def _charge(self, job: Job, shape: Shape, tasks: int) -> None:
        job.queue.uses += 1
        for account in job.accounts:
            account.tasks += tasks
            used = account.used
            for name, amount in shape.amounts:
                now = used.get(name, 0) + amount * tasks
                if now:
                    used[name] = now
                else:
                    del used[name]
        if self.settings.share_memory:
            weighted = self.weight() * tasks
            amounts = ((TASKS, 1), *shape.amounts)
            for account in job.accounts:
                booked = account.booked
                for name, amount in amounts if booked is not None else ():
                    assert booked is not None
                    booked[name] = booked.get(name, 0) + amount * weighted

    def exchange(self, after: Allocation) -> None:
        """Replace an allocation by one with the same number and tasks in another state."""
        stage = after.stage
        self.allocations[after.id] = after
        if after.overdue:
            self.derived.overdue[after.id] = after
        else:
            self.derived.overdue.pop(after.id, None)
        if (
            self.derived.forecast is not None
            and self.derived.forecast.move(after, self.now)
            and self.memory.replan_at < FAR
        ):
            self.memory.replan_at = self.now
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
            heappush(self.derived.timers, (when, allocation.id))
            if len(self.derived.timers) > 2 * len(self.allocations) + 1_000:
                self.retime()  # drop the timers of allocations that ended before their deadline

    def link(self, allocation: Allocation) -> None:
        self.derived.chains.setdefault(allocation.chain, {})[allocation.id] = allocation
        self.touched.chains.add(allocation.chain)

    def unlink(self, allocation: Allocation) -> None:
        chain = self.derived.chains[allocation.chain]
        del chain[allocation.id]
        if not chain:
            del self.derived.chains[allocation.chain]
        self.touched.chains.add(allocation.chain)

    def waiting_in(self, chain: int) -> list[Allocation]:
        """Return the allocations of a chain that wait for a slot, the oldest first."""
        allocations = self.derived.chains.get(chain, {})
        return [allocations[number] for number in sorted(allocations) if allocations[number].slots]

    def deadline(self, allocation: Allocation) -> Micros | None:
        """Return the time by which an allocation must be acknowledged, returned, started, ended or stopped."""
        if allocation.state == "assigned":
            settings = self.settings
            patience = settings.launch_timeout
            if allocation.slots and not allocation.cause:
                patience = CHAIN_RECALL_FACTOR * settings.chain
            return self.readiness.counts_from(allocation.since) + patience
        limit = allocation.stage.terms.time_limit
        if allocation.state == "running" and limit is not None and allocation.started is not None:
            return allocation.started + limit
        if allocation.state == "stopping" and not allocation.overdue:
            return max(allocation.since, self.readiness.ready_at) + self.grace_of(allocation.stage) + STOP_MARGIN
        return None

    def grace_of(self, stage: Stage) -> Micros:
        """Return the time that stopped tasks of a stage have to end."""
        return self.settings.preempt_grace if stage.terms.grace is None else stage.terms.grace

    def become_ready(self) -> None:
        self.readiness.ready = True
        self.readiness.ready_at = self.now
        self.retime()

    def retime(self) -> None:
        """Compute all deadlines again, after a setting changed or when many are outdated."""
        times = ((self.deadline(allocation), allocation.id) for allocation in self.allocations.values())
        self.derived.timers = sorted((when, number) for when, number in times if when is not None)

    def update_short(self, stage: Stage) -> None:
        """Begin or end the time during which a stage has too few live tasks."""
        if stage.short_since is None and stage.pending[REPLACE] is None and not stage.below_min:
            return
        short = is_short(stage)
        if short != (stage.short_since is not None):
            self.mark_short(stage, self.now if short else None)
        else:
            self.update_missing(stage)

    def update_missing(self, stage: Stage) -> None:
        """Update `below_min` of a stage, and the place of the ask for its replacements."""
        below = stage.pending[REPLACE] is not None and stage.missing() > 0
        if below != stage.below_min:
            stage.below_min = below
            ask = stage.asks[REPLACE]
            if ask is not None:
                self.lanes[lane_key(ask)].move(ask)

    def mark_short(self, stage: Stage, since: Micros | None) -> None:
        """Set since when a stage has too few live tasks; None if it has enough."""
        self.update_missing(stage)
        stage.short_since = since
        if since is None or stage.on_loss != "replace":
            self.derived.short.pop((stage.job.id, stage.position), None)
        else:
            self.derived.short[stage.job.id, stage.position] = since
            self.memory.unheld_starving = True  # the replacements may already have waited too long

    def _resort(self, job: Job) -> None:
        for stage in job.stages:
            for ask in stage.asks:
                if ask is not None:
                    self.lanes[lane_key(ask)].touch(ask)

    def list_or_unlist(self, job: Job) -> None:
        """Count a job in its queue, unless it has ended and has no allocations left."""
        listed = job.ended_at is None or job.allocations > 0
        if listed != job.listed:
            job.queue.jobs += 1 if listed else -1
            job.listed = listed
            if not listed:
                self.may_forget(job)

    def may_forget(self, job: Job) -> None:
        """Schedule a job to be forgotten if it has ended and no allocation or waiting job refers to it."""
        if job.ended_at is not None and not job.allocations and job.id not in self.derived.followers:
            heappush(self.derived.forgetting, (job.ended_at, job.number, job.id))

    # -- runs, idempotency keys and priorities -------------------------------------------------------------------------

    def note_runs(self, key: RunsKey, runs: Runs) -> None:
        self.runs[key] = runs
        heappush(self.derived.old_runs, (runs.noted, key))
        self.derived.runs_version += 1
        if len(self.derived.old_runs) > 2 * len(self.runs) + 1_000:
            self.derived.old_runs = sorted((runs.noted, key) for key, runs in self.runs.items())

    def keep_key(self, user: str, key: str, entry: KeptKey) -> None:
        user_key = (user, key)
        before = self.keys.get(user_key)
        if before is not None and before.job:
            self.derived.key_of.pop(before.job, None)
        self.keys[user_key] = entry
        if entry.job:
            self.derived.key_of[entry.job] = user_key  # the same tuple, to save memory: there may be one per job
        if entry.expires is not None:
            heappush(self.derived.expiring, (entry.expires, user, key))

    def drop_key(self, user: str, key: str) -> KeptKey:
        entry = self.keys.pop((user, key))
        self.derived.key_of.pop(entry.job, None)
        return entry

    def count_priority(self, priority: int, jobs: int) -> None:
        total = self.derived.priorities.get(priority, 0) + jobs
        if total:
            self.derived.priorities[priority] = total
        else:
            del self.derived.priorities[priority]

    # -- queries -------------------------------------------------------------------------------------------------

    def unmet(self, job: Job) -> tuple[After, ...]:
        """Return the dependencies for which all tasks of a job still wait. A job is forgotten when it is over and no
        job waits for it, so dependencies on forgotten jobs are met."""
        if not job.after:
            return ()
        return tuple(
            [after for after in job.after if after.job in self.jobs and not is_met(self.jobs[after.job], after.when)]
        )

    def known_resources(self) -> list[str]:
        """Return the names of the built-in resources and of the resources of nodes and pools."""
        resources = {*BUILT_IN, *(name for name, nodes in self.nodes.offered.items() if nodes)}
        for pool in self.pools.values():
            resources.update(name for name, _ in pool.settings.node)
        return sorted(resources)


def is_met(before: Job, when: Condition) -> bool:
    """True if a job need not wait for another one any more. A dependency that is met stays so."""
    match when:
        case "ok":
            return before.state == "succeeded"
        case "any":
            return before.over and not before.allocations
        case "failed":
            return before.state in ("failed", "killed") and not before.allocations
        case "started":
            return any([stage.top for stage in before.stages])
    return True  # `each` blocks single tasks


def is_short(stage: Stage) -> bool:
    """True if a started stage has lost tasks and has fewer live tasks than it needs.

    A short stage stays short until its replacements are acknowledged. Otherwise a node that refuses them would restart
    the time of `replace_within` each time.
    """
    if stage.pending[REPLACE] is None and stage.short_since is None:
        return False
    if not stage.started or stage.job.over or stage.job.held_by is not None:
        return False  # a held job starts no replacements, so its other tasks need not stop
    coming = 0
    if stage.short_since is not None and stage.live:
        coming = sum(1 for task in stage.live.values() if task.kind == REPLACE and task.state == "assigned")
    if not coming and stage.pending[REPLACE] is None:
        return False
    return stage.running() - coming < stage.needed_before_growth


def _group_of(line: list[Queue], groups: tuple[str, ...]) -> str | None:
    """Return the group for which a job counts: from the leaf up, the first of `groups` that has limits, else `*`."""
    for queue in reversed(line):
        named = {name for name, _ in queue.settings.groups}
        for group in groups:
            if group in named:
                return group
        if WILDCARD in named:
            return WILDCARD
    return None


def max_priority(queue: Queue, user: str, groups: tuple[str, ...]) -> int:
    """Return the highest priority that a user may give to jobs of a queue.

    From the queue up, the first queue with a value decides: the value of the user or of the group, whichever is higher,
    else its own.
    """
    line = queue.line()
    group = _group_of(line, groups)
    for level in reversed(line):
        entries = (_limits_of(level.settings.users, user), dict(level.settings.groups).get(group or ""))
        given = [limits.max_priority for limits in entries if limits is not None and limits.max_priority is not None]
        if given:
            return max(given)
        if level.settings.max_priority is not None:
            return level.settings.max_priority
    return 0


NO_LIMITS = Limits()


def _limits_of(limits: tuple[tuple[str, Limits], ...], name: str) -> Limits | None:
    table = dict(limits)
    return table.get(name, table.get(WILDCARD))


def _account(accounts: dict[str, Account], key: str, name: str, limits: Limits) -> Account:
    account = accounts.get(key)
    if account is None:
        limit = None if limits.limit is None else dict(limits.limit)
        account = accounts[key] = Account(name, limit, limits.max_jobs)
    return account
