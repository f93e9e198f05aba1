"""Any commands in any order: all invariants after every step, undo is the identity, and replay equals live.

The machine drives a World. Before every cycle the same cycle is run and taken back, and the state must be the same
to the byte; after it, the journal alone must give the same bytes. Every start is judged by `DoorChecker`, and loans
that are not taken back by `LoanChecker`.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead.core import cycle
from fairlead.core.commands import RemovePartition
from fairlead.core.dump import dump, load
from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.core.lanes import lane_key, text_of
from fairlead.core.match import single_tasks
from fairlead.core.policy.fit import choose_devices
from fairlead.core.policy.order import ORDERS
from fairlead.core.policy.placement import PLACEMENTS
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.journal.codec import restore
from fairlead.views.metrics.metrics import Metrics
from tests.chaos.bill_checker import BillChecker
from tests.chaos.checkers import GenerationChecker
from tests.chaos.rebalance_checker import LoanChecker
from tests.chaos.start_checker import DoorChecker
from tests.core.gang_watch import WatchedWorld

NODES = [f"n{number}" for number in range(5)]
FEW = single_tasks.FEW
PLACES = ["pack"] * len(PLACEMENTS) + sorted(PLACEMENTS)
JOBS = [f"j{number}" for number in range(8)]
QUEUES = ["root.a", "root.b.x", "root.b.y"]
STAGES = ["s", "t"]

node_names = st.sampled_from(NODES)
jobs = st.sampled_from(JOBS)
FAULTS_OF_AGENTS = "hold_acks release_acks refuse_launches silence disconnect connect fail_node return_node".split()
queues = st.sampled_from(QUEUES)
dependencies = st.builds("{}:{}".format, jobs, st.sampled_from(["ok", "any", "failed", "started"]))
stages = st.sampled_from(STAGES)
resources = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([0, "500m", 1, 2, 3]),
        "memory": st.sampled_from(["1Gi", "2Gi"]),
        "gpu": st.sampled_from(["0.25", "0.5", 1, 2]),
        "disk": st.sampled_from([1, 2]),
    },
)
capacities = st.fixed_dictionaries(
    {"cpu": st.integers(1, 6)},
    optional={"memory": st.just("4Gi"), "gpu": st.integers(0, 4), "disk": st.integers(1, 3)},
)
stage_documents = st.fixed_dictionaries(
    {"resources": resources, "count": st.integers(1, 5)},
    optional={
        "min": st.sampled_from([1, 1, 1, 2, 3]),
        "tries": st.integers(1, 3),
        "on_loss": st.sampled_from(["replace", "restart", "fail"]),
        "on_failure": st.sampled_from(["replace", "restart", "fail"]),
        "scaling": st.sampled_from(["strict", "partial"]),
        "duration": st.integers(0, 5),
        "selectors": st.just({"zone": "a"}),
        "where": st.sampled_from(["zone = a", "!zone", ["rack notin (r1)", "zone"]]),
        "prefer": st.sampled_from([{"zone = a": 1}, {"!zone": 2, "rack": 1}]),
        "near": st.just("zone"),
        "apart": st.just(True),
        "time_limit": st.sampled_from(["2s", "20s"]),
        "estimate": st.sampled_from(["1s", "5s", "30s"]),
    },
)
limits = st.fixed_dictionaries({}, optional={"cpu": st.integers(0, 8), "gpu": st.integers(0, 4)})
queue_settings = st.fixed_dictionaries(
    {},
    optional={
        "share": st.integers(0, 100),
        "limit": limits,
        "guarantee": st.fixed_dictionaries({}, optional={"cpu": st.integers(0, 4), "gpu": st.integers(0, 2)}),
        "preemptible": st.booleans(),
        "max_jobs": st.integers(0, 3),
        "order": st.sampled_from(sorted(ORDERS)),
        "users": st.dictionaries(
            st.sampled_from(["ann", "*"]),
            st.fixed_dictionaries({}, optional={"limit": limits, "max_jobs": st.integers(0, 2)}),
        ),
        "groups": st.dictionaries(st.sampled_from(["g", "*"]), st.fixed_dictionaries({"limit": limits})),
    },
)

POOLS = ["p", "q"]
pool_settings = st.fixed_dictionaries(
    {"node": st.sampled_from([{"cpu": 4, "memory": "4Gi"}, {"cpu": 2, "gpu": 2, "memory": "4Gi"}])},
    optional={
        "min": st.integers(0, 1),
        "max": st.integers(1, 4),
        "min_idle": st.integers(0, 1),
        "max_idle": st.integers(0, 2),
        "cost": st.integers(0, 2),
        "min_free": st.sampled_from([{}, {"cpu": 3}, {"cpu": 1, "memory": "5Gi"}]),
    },
)


class Machine(RuleBasedStateMachine):
    @initialize(
        rhythm=st.integers(1, 4),
        place=st.sampled_from(PLACES),
        first=st.lists(stage_documents, min_size=1, max_size=4),
        chain=st.sampled_from([0, "5s", "20s"]),
        backfill=st.sampled_from(["off", "off", "easy", "shortest", "conservative"]),
        threshold=st.sampled_from([None, 0, 5, 20]),
        memory=st.sampled_from([0, "1min", "1h"]),
        estimates=st.sampled_from(["given", "learned"]),
    )
    def start(
        self,
        rhythm: int,
        place: str,
        first: list[Any],
        chain: Any,
        backfill: str,
        threshold: int | None,
        memory: Any,
        estimates: str = "given",
    ) -> None:
        single_tasks.FEW = 1  # so that lanes as short as these get batches too
        self.rhythm = rhythm
        self.rules = 0
        self.metrics = Metrics()
        self.balance = Balance(self.metrics)
        self.loans = LoanChecker()
        self.generations = GenerationChecker()
        self.settings = {**SETTINGS, "place": place, "chain": chain, "backfill": backfill}
        self.settings["rebalance_threshold"] = threshold
        self.settings["share_memory"] = memory
        self.settings["estimates"] = estimates
        self.bills = BillChecker()
        observers = [self.metrics, self.balance, DoorChecker(), self.loans, self.bills]
        self.w = WatchedWorld(self.settings, observers=observers)
        for path in ("root.b", *QUEUES):
            self.w.queue(path, share=10)
        self.w.node("n0", cpu=4, memory="4Gi", gpu=2, disk=2, labels={"zone": "a"})
        self.w.node("n1", cpu=6, memory="4Gi", disk=2, labels={"zone": "a"})
        self.w.rm("k8s").register()
        self.w.rm("k8s").update(
            nodes=[{"name": "m0", "resources": {"cpu": 4}}], jobs=[{"job": "r1", "queue": "root.a", "user": "ann"}]
        )
        self.submitted: list[str] = []
        self.floods = 0
        self.w.cycle()
        for number, document in enumerate(first):
            self._submit(name=f"f{number}", queue=QUEUES[number % 3], user="ann", stages=[{**document, "name": "s"}])
        both = [{**document, "name": name} for name, document in zip(STAGES, first, strict=False)]
        self._submit(name="whole", queue="root.a", user="bob", stages=both, gang="job")
        self.w.cycle()
        if chain:
            # Tasks of a second are quick by these settings: the rest of them are in chains now.
            self.array("q0", QUEUES[0], 60, 1, "replace")
            self.w.advance(1)

    def teardown(self) -> None:
        single_tasks.FEW = FEW
        if hasattr(self, "bills"):
            self.bills.at_end()

    # -- nodes

    @rule(name=node_names, capacity=capacities, zone=st.sampled_from(["a", "b"]))
    def node(self, name: str, capacity: dict[str, Any], zone: str) -> None:
        self.w.node(name, labels={"zone": zone}, **capacity)

    @rule(name=node_names, capacity=capacities)
    def update_node(self, name: str, capacity: dict[str, Any]) -> None:
        if ("default", name) in self.w._nodes:
            self.w.update_node(name, **capacity)

    @rule(name=node_names, action=st.sampled_from(["drain", "disable", "enable", "remove_node"]))
    def move_node(self, name: str, action: str) -> None:
        getattr(self.w, action)(name)

    @rule(name=node_names, lasts=st.sampled_from([0, "4s", "20s"]), delay=st.sampled_from(["3s", "30s"]))
    def drain_later(self, name: str, lasts: Any, delay: str) -> None:
        self.w.drain(name, "maintenance", lasts, delay)

    @rule(
        name=node_names,
        action=st.sampled_from(FAULTS_OF_AGENTS),
    )
    def misbehave(self, name: str, action: str) -> None:
        if ("default", name) in self.w._nodes:
            getattr(self.w, action)(name)

    # -- jobs

    @rule(queue=queues, resources=resources, count=st.integers(1, 6))
    def flood(self, queue: str, resources: Any, count: int) -> None:
        """Jobs of one task each, all alike."""
        for _ in range(count):
            self.floods += 1
            self._submit(
                name=f"x{self.floods}", queue=queue, user="bob", stages=[{"name": "s", "resources": resources}]
            )

    @rule(
        queue=queues,
        other=queues,
        count=st.integers(4, 20),
        wanted=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=4),
    )
    def crowd(self, queue: str, other: str, count: int, wanted: list[tuple[int, int]]) -> None:
        """A long array takes all free capacity; then small and large jobs arrive one after the other."""
        stage = {"name": "s", "count": count, "min": 1, "resources": {"cpu": 1}}
        self._submit(name="array", queue=queue, user="ann", stages=[stage])
        for cpu, priority in wanted:
            self._step(lambda: self.w.advance(1))
            job = {"name": "late", "queue": other, "user": "bob", "priority": priority}
            self._submit(**job, stages=[{"name": "s", "resources": {"cpu": cpu}}])

    @rule(
        queue=queues,
        other=queues,
        ends=st.sampled_from(["5s", "30s"]),
        end=st.sampled_from(["", "kill", "cancel", "hold", "set_priority", "reset_lane"]),
    )
    def keep_back(self, queue: str, other: str, ends: str, end: str) -> None:
        """A long small task would delay a large one, and is kept back for it. Then the large one may go."""
        self.w.node("n9", cpu=4, labels={"zone": "c"})

        def task(name: str, queue: str, cpu: int, estimate: str) -> None:
            stage = {"name": "s", "resources": {"cpu": cpu}, "estimate": estimate, "selectors": {"zone": "c"}}
            self._submit(name=name, queue=queue, user="ann", stages=[stage])
            self._step(self.w.cycle)

        for name, where, cpu, estimate in (
            ("soon", queue, 1, ends),
            ("late", queue, 1, "1min"),
            ("head", queue, 3, "1s"),
            ("next", other, 1, "1h"),
        ):
            task(name, where, cpu, estimate)
        if end and "head" in self.w.partition().jobs:
            arguments: dict[str, Any] = {"cancel": ("s",), "set_priority": (-3,)}
            if end == "reset_lane":
                self.w.reset_lane(queue, "head", True)
            else:
                getattr(self.w, end)("head", *arguments.get(end, ()))
            self._step(lambda: self.w.advance(0))

    @rule(
        name=jobs,
        queue=queues,
        user=st.sampled_from(["ann", "bob"]),
        one=stage_documents,
        other=st.none() | stage_documents,
        priority=st.integers(-1, 2),
        after=st.none() | st.none() | st.none() | dependencies,
        key=st.none() | st.sampled_from(["k1", "k2"]),
        gang=st.sampled_from(["stage", "job"]),
    )
    def submit(
        self,
        name: str,
        queue: str,
        user: str,
        one: Any,
        other: Any,
        priority: int,
        after: Any,
        key: Any,
        gang: str,
    ) -> None:
        self._submit(
            name=name,
            queue=queue,
            user=user,
            groups=["g"] if user == "bob" else [],
            stages=[{**one, "name": "s"}] + ([{**other, "name": "t"}] if other else []),
            priority=priority,
            after=[after] if after else [],
            key=key,
            gang=gang,
            done_when={"stage": "s"} if priority > 0 else None,
        )

    @rule(
        name=jobs,
        queue=queues,
        count=st.integers(10, 60),
        tries=st.integers(1, 2),
        on_loss=st.sampled_from(["replace", "restart", "fail"]),
        throttle=st.sampled_from([None, None, 1, 3]),
        chosen=st.sampled_from([None, None, "1,3,5-9", "0-8:2"]),
        follows=st.booleans(),
        singleton=st.booleans(),
    )
    def array(
        self,
        name: str,
        queue: str,
        count: int,
        tries: int,
        on_loss: str,
        throttle: int | None = None,
        chosen: str | None = None,
        follows: bool = False,
        singleton: bool = False,
    ) -> None:
        """Many quick tasks, which go in chains where these are on. Another array may follow them task by task."""
        stage = {"array": chosen or count, "tries": tries, "on_loss": on_loss, "resources": {"cpu": 1}, "duration": 1}
        stage = {**stage, "name": "s", "throttle": throttle}
        self._submit(name=name, queue=queue, user="ann", stages=[stage], singleton=singleton)
        if follows and self.submitted:
            after = [f"{self.submitted[-1]}:each"]
            self._submit(name="follower", queue=queue, user="ann", stages=[{**stage, "array": "1,3"}], after=after)

    @rule(names=st.permutations(JOBS[:4]), queue=queues, when=st.sampled_from(["ok", "any", "failed"]))
    def pipeline(self, names: list[str], queue: str, when: str) -> None:
        stages = [{"name": "s"}]
        jobs = [{"name": name, "queue": queue, "stages": stages} for name in names]
        for earlier, later in pairwise(jobs):
            later["after"] = [f"{earlier['name']}:{when}"]
        first = self.w.partition().counters.job
        self.w.submit_pipeline("pipe", jobs, user="ann")
        self.submitted += [str(first), str(first + 2)]

    @rule(
        data=st.data(),
        user=st.sampled_from([None, None, "ann"]),
        queue=st.none() | queues,
        after=st.none() | st.none() | dependencies,
        cpu=st.sampled_from([None, None, 1, 2]),
        throttle=st.sampled_from([None, "none", 1, 2]),
        limit=st.sampled_from([None, "none", "3s"]),
        priority=st.sampled_from([None, 1]),
    )
    def update_job(
        self, data: Any, user: Any, queue: Any, after: Any, cpu: Any, throttle: Any, limit: Any, priority: Any
    ) -> None:
        changes: dict[str, Any] = {"queue": queue, "throttle": throttle, "time_limit": limit, "priority": priority}
        changes |= {"after": [after] if after else None, "resources": {"cpu": cpu} if cpu else None, "stage": "s"}
        self._on_job(data, lambda job: self.w.update_job(job, user, **changes, labels={"changed": "yes"}))

    def _submit(self, **document: Any) -> None:
        with suppress(Refused):  # more needed together than there are
            self.submitted.append(self.w.submit(**document))

    @rule(data=st.data(), stage=stages, count=st.integers(0, 6))
    def scale(self, data: Any, stage: str, count: int) -> None:
        self._on_job(data, lambda job: self.w.scale(job, stage, count))

    @rule(data=st.data(), user=st.sampled_from([None, "ann", "bob"]))
    def kill(self, data: Any, user: Any) -> None:
        self._on_job(data, lambda job: self.w.kill(job, user))

    @rule(
        data=st.data(),
        user=st.sampled_from([None, "ann", "bob"]),
        action=st.sampled_from(["hold", "hold", "release", "requeue"]),
    )
    def hold_back(self, data: Any, user: Any, action: str) -> None:
        self._on_job(data, lambda job: getattr(self.w, action)(job, user))

    @rule(
        data=st.data(),
        stage=stages,
        action=st.sampled_from(["kill", "requeue", "replace"]),
        tasks=st.sets(st.integers(0, 5), min_size=1, max_size=3),
    )
    def stop_tasks(self, data: Any, stage: str, action: Any, tasks: set[int]) -> None:
        self._on_job(data, lambda job: self.w.stop_tasks(job, action, stage, *sorted(tasks)))

    @rule(data=st.data(), stage=stages, action=st.sampled_from(["prioritise", "cancel"]))
    def move_ask(self, data: Any, stage: str, action: str) -> None:
        self._on_job(data, lambda job: getattr(self.w, action)(job, stage))

    @rule(data=st.data(), priority=st.integers(-3, 3))
    def set_priority(self, data: Any, priority: int) -> None:
        self._on_job(data, lambda job: self.w.set_priority(job, priority))

    @rule(data=st.data(), queue=queues, cancel=st.booleans())
    def reset(self, data: Any, queue: str, cancel: bool) -> None:
        self._on_job(data, lambda job: self.w.reset_lane(queue, job, cancel))

    @rule(data=st.data(), code=st.integers(0, 1))
    def finish(self, data: Any, code: int) -> None:
        live = self._live()
        if live:
            job, stage, index = data.draw(st.sampled_from(live))
            self.w.finish(job, stage, index, code)

    @rule(
        data=st.data(),
        attempt=st.integers(1, 4),
        state=st.sampled_from(["running", "refused", "succeeded", "failed", "stopped", "lost"]),
    )
    def odd_report(self, data: Any, attempt: int, state: Any) -> None:
        live = self._live()
        if live:
            job, stage, index = data.draw(st.sampled_from(live))
            self.w.report(job, stage, index, attempt, state)

    # -- resource managers

    @rule()
    def register(self) -> None:
        self.w.rm("k8s").register()

    @rule(name=st.sampled_from(["m0", "m1"]), capacity=capacities, action=st.sampled_from(["add", "drain", "remove"]))
    def manager_node(self, name: str, capacity: dict[str, Any], action: str) -> None:
        document: dict[str, Any] = {"name": name, "action": action}
        if action == "add":
            document["resources"] = capacity
        self.w.rm("k8s").update(nodes=[document])

    @rule(job=st.sampled_from(["r1", "r2"]), queue=queues, remove=st.booleans())
    def manager_job(self, job: str, queue: str, remove: bool) -> None:
        document = {"job": job, "remove": True} if remove else {"job": job, "queue": queue, "user": "ann"}
        self.w.rm("k8s").update(jobs=[document])

    @rule(
        job=st.sampled_from(["r1", "r2"]),
        ask=st.sampled_from(["x", "y"]),
        count=st.integers(1, 4),
        withdraw=st.booleans(),
    )
    def manager_ask(self, job: str, ask: str, count: int, withdraw: bool) -> None:
        document: dict[str, Any] = {"job": job, "ask": ask}
        document |= {"withdraw": True} if withdraw else {"count": count, "min": 1, "resources": {"cpu": 1}}
        self.w.rm("k8s").update(asks=[document])

    @rule(job=st.sampled_from(["r1", "r2"]), ask=st.sampled_from(["", "x", "y"]), index=st.none() | st.integers(0, 3))
    def manager_release(self, job: str, ask: str, index: Any) -> None:
        self.w.rm("k8s").update(releases=[{"job": job, "ask": ask, "index": index}])

    @rule(
        job=st.sampled_from(["r1", "r2"]),
        ask=st.sampled_from(["x", "y"]),
        node=st.sampled_from(["m0", "m1", "n0"]),
        index=st.integers(0, 3),
        gpu=st.sampled_from([0, 0, 1, 2]),
    )
    def manager_recover(self, job: str, ask: str, node: str, index: int, gpu: int) -> None:
        wanted = {"cpu": 1, "gpu": gpu} if gpu else {"cpu": 1}
        document = {"job": job, "ask": ask, "node": node, "index": index, "min": 1, "resources": wanted}
        self.w.rm("k8s").update(recover=[document])

    # -- configuration

    @rule(queue=queues, changes=queue_settings)
    def set_queue(self, queue: str, changes: dict[str, Any]) -> None:
        self.w.queue(queue, **changes)

    @rule(keep=st.sets(st.sampled_from(QUEUES), min_size=1))
    def remove_queues(self, keep: set[str]) -> None:
        tree: dict[str, Any] = {}
        for path in sorted(keep):
            place = tree
            for name in path.split("."):
                place = place.setdefault(name, {})
        self.w.configure({**self.settings, "queues": tree})

    @rule(queue=queues, action=st.sampled_from(["stop_queue", "start_queue"]))
    def move_queue(self, queue: str, action: str) -> None:
        getattr(self.w, action)(queue)

    # -- pools

    @rule(name=st.sampled_from(POOLS), settings=pool_settings)
    def pool(self, name: str, settings: dict[str, Any]) -> None:
        self.w.pool(name, idle_for="5s", labels={"zone": "a"}, **settings)

    @rule(name=st.sampled_from(POOLS), nodes=st.integers(1, 3), small=st.booleans())
    def arrive(self, name: str, nodes: int, small: bool) -> None:
        """Some nodes that arrive are not what was ordered."""
        if name in self.w._config["partitions"]["default"].get("pools", {}):
            self.w.arrive(name, nodes, **({"cpu": 1} if small else {}))

    @rule(name=st.sampled_from(POOLS))
    def fail_order(self, name: str) -> None:
        if any(order.pool == name for order in self.w.partition().orders.values()):
            self.w.fail_order(name)

    @rule(data=st.data())
    def fail_machines(self, data: Any) -> None:
        """Some machines of one order fail, and the others are still expected."""
        orders = self.w.partition().orders
        if orders:
            coming = sorted(orders[data.draw(st.sampled_from(sorted(orders)))].coming)
            self.w.fail_machines(*data.draw(st.lists(st.sampled_from(coming), min_size=1, unique=True)))

    @rule(name=st.sampled_from(POOLS), nodes=st.integers(0, 4))
    def scale_pool(self, name: str, nodes: int) -> None:
        self.w.scale_pool(name, nodes)

    @rule(name=st.sampled_from(POOLS), action=st.sampled_from(["pause_pool", "resume_pool"]))
    def move_pool(self, name: str, action: str) -> None:
        getattr(self.w, action)(name)

    @rule(at=st.integers(0, 20))
    def release_hold(self, at: int) -> None:
        holds = list(self.w.partition().holds.values())
        if holds:
            self.w.release_hold(holds[at % len(holds)].job)

    @rule(at=st.integers(0, 20))
    def ignore_stops(self, at: int) -> None:
        jobs = [job.id for job in self.w.partition().jobs.values() if not job.over]
        if jobs:
            self.w.ignore_stops(jobs[at % len(jobs)])

    # -- time and trouble

    @rule(seconds=st.sampled_from([0, 1, 3, 10, 25]))
    def advance(self, seconds: int) -> None:
        self._step(lambda: self.w.advance(seconds))

    @rule(how=st.sampled_from([("failed", False), ("unknown", False), ("unknown", True)]))
    def break_journal(self, how: Any) -> None:
        self.w.break_journal(*how)

    @rule()
    def restart(self) -> None:
        before = self.w.dump()
        self.w.restart()
        assert self.w.dump() == before

    @rule(seconds=st.sampled_from([0, 5, 300]))
    def away(self, seconds: int) -> None:
        """The server is away for a while, and is then not ready for a cycle: nothing expires in it."""
        self.w.restart(ready=False, away=seconds)
        kept = self.w.partition().holds.keys() | self.w.partition().promises.keys(), set(self.w.partition().orders)
        quiet = not self.w._queue
        self._step(self.w.cycle)
        partition = self.w.partition()
        assert (
            not quiet
            or kept == (partition.holds.keys() | partition.promises.keys(), set(partition.orders))
            or partition.readiness.ready
        )
        self.w.mark_ready()

    @rule()
    def cycle(self) -> None:
        self._step(self.w.cycle)

    # -- what must hold

    @invariant()
    def undo_is_the_identity(self) -> None:
        if not hasattr(self, "w"):
            return
        # An abandoned plan clears what phases remember, and mostly that has to stay for the next cycle.
        live = self.w.partition()
        self._take_back_a_cycle(live if self.rules % 3 == 0 else afresh(live))
        self.rules += 1
        if self.rules % self.rhythm == 0:
            self._step(self.w.cycle)

    def _take_back_a_cycle(self, partition: Partition) -> None:
        commands = [entry[1] for entry in self.w._queue if isinstance(entry, tuple)]
        before, ready = dump(partition), partition.readiness.ready
        decided = cycle.run(partition, commands, self.w.now)
        decided.plan.abandon()
        partition.readiness.ready = ready  # readiness is no part of a plan; here the cycle follows once more
        assert dump(partition) == before
        check_all(partition)
        # Removing the partition releases everything under it, whatever that is, and can be taken back as well.
        removed = cycle.run(partition, [*commands, RemovePartition(operator=True)], self.w.now)
        assert partition.removed and not partition.allocations and not partition.nodes.rows
        check_all(partition)
        removed.plan.abandon()
        partition.readiness.ready = ready
        assert dump(partition) == before

    def _step(self, act: Any) -> None:
        with suppress(Refused):  # a configuration that cannot be followed; nothing of it was
            act()
        partition = self.w.partition()
        check_all(partition)
        live = dump(partition)
        assert dump(load(live)) == live
        restored, _ = restore(self.w.journal, "default")
        check_all(restored)
        assert dump(restored) == live

        self.generations.check(partition)
        self._look_at_loans()
        self._the_metrics_agree(partition)
        self._nothing_was_overlooked(partition)
        self._the_index_is_exact(partition)

    def _look_at_loans(self) -> None:
        """Judge the loans, also when no cycle follows: time alone may make a wait too long."""
        settled = not self.w.cluster.writers["default"].more and not self.w._queue
        self.loans.look(self.w.partition(), self.w.now, settled)

    def _the_metrics_agree(self, partition: Partition) -> None:
        """Compare the figures that were counted change by change with the state."""
        expected: dict[tuple[str, str], tuple[int, int]] = {}
        for job in partition.jobs.values():
            for stage in job.stages:
                lane = (job.queue.path, stage.shape.text)
                asked, waiting = expected.get(lane, (0, 0))
                expected[lane] = (asked, waiting + stage.unstarted())
                for ask in stage.asks:
                    if ask is not None and ask.stage is stage:
                        lane = (job.queue.path, text_of(lane_key(ask)[1]))
                        asked, waiting = expected.get(lane, (0, 0))
                        expected[lane] = (asked + 1, waiting)
        counted = self.metrics.registry.get_sample_value
        for (queue, shape), figures in expected.items():
            labels = {"partition": partition.name, "queue": queue, "shape": shape}
            names = ("fairlead_lane_asks", "fairlead_lane_pending_tasks")
            assert figures == tuple(counted(name, labels) or 0 for name in names)
        assert self.balance.came() == sum(asked for asked, _ in expected.values())

    def _nothing_was_overlooked(self, partition: Partition) -> None:
        """A cycle on a fresh copy of the state, with all lanes awake, finds no more to do than one that remembers.

        If no cycle is to follow and nothing is due, there is nothing to do.
        """
        writer = self.w.cluster.writers["default"]
        if writer.more or not partition.readiness.ready or self.w._queue:
            return
        due = cycle.due(partition)  # before the next plan: phases remember its findings, even if it is taken back
        found = cycle.run(afresh(partition), [], self.w.now).changes
        decided = cycle.run(partition, [], self.w.now)
        remembered = decided.changes
        decided.plan.abandon()
        assert found == remembered
        assert not remembered or (due is not None and due <= self.w.now), remembered

    def _the_index_is_exact(self, partition: Partition) -> None:
        """Compare the index with a search over all nodes: both find a node for a shape, or neither does."""
        for shape in list(partition.derived.shapes.values()):
            partition.derived.index.refresh()
            fitting = {
                node_id
                for node_id, row in partition.nodes.rows.items()
                if partition.nodes.manager[row] == shape.key.manager and _fits(partition, shape, row)
            }
            found = [each.node_id for each in partition.derived.index.choose(shape, 1, 0)]
            partition.derived.index.put_back(found)
            assert set(found) <= fitting and bool(found) == bool(fitting)

    def _on_job(self, data: Any, act: Any) -> None:
        if self.submitted:
            act(data.draw(st.sampled_from(self.submitted)))

    def _live(self) -> list[tuple[str, str, int]]:
        partition = self.w.partition()
        return [
            (job.id, stage.name, index)
            for job in sorted(partition.jobs.values(), key=lambda job: job.number)
            if not job.spec.manager
            for stage in job.stages
            for index in sorted(stage.live or ())
        ]


def afresh(partition: Partition) -> Partition:
    """Return a copy of the partition that knows the state and nothing that phases remember."""
    loaded = load(dump(partition))
    loaded.readiness = copy(partition.readiness)
    loaded.retime()
    return loaded


class Balance:
    """An observer that counts asks: those at the start of the writer, plus added, minus removed, as metrics do."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.found = 0

    def began(self, partition: Partition) -> None:
        self.found += sum(lane.size for lane in partition.lanes.values()) - self.came()

    def came(self) -> int:
        def counted(name: str, **label: str) -> int:
            labels = {"partition": "default", **label}
            return int(self.metrics.registry.get_sample_value(f"fairlead_{name}_total", labels) or 0)

        went = counted("asks_ended", how="completed") + counted("asks_ended", how="cancelled")
        return self.found + counted("upserts", result="inserted") - went

    def cycle(self, decided: cycle.Cycle, seconds: object) -> None:
        pass

    def stopped(self, partition: Partition, why: str) -> None:
        pass


def _fits(partition: Partition, shape: Shape, row: int) -> bool:
    nodes = partition.nodes
    if not nodes.placeable(row) or nodes.node_id[row] in nodes.held:
        return False
    if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
        return False
    free = nodes.free(row)
    if any(free.get(name, 0) < amount for name, amount in shape.amounts):
        return False
    count = nodes.gpus[row]
    return not shape.devices or bool(choose_devices(nodes.devices[row], count, shape.devices, shape.device_milli, 1))


SETTINGS = {
    "keep_ended": "20s",
    "keep_keys": "30s",
    "lease": "5s",
    "heartbeat": "1s",
    "starving_after": "2s",
    "hold_for": "15s",
    "promise_for": "12s",
    "pool_pause": "2s",
    "rebalance_after": "3s",
    "recall_after": "500ms",
    "preempt_grace": "2s",
}

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, report_multiple_bugs=False)


@pytest.mark.long
class TestMachineForLong(Machine.TestCase):
    settings = settings(max_examples=3000, stateful_step_count=60, deadline=None, report_multiple_bugs=False)
