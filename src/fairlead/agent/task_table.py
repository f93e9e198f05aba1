"""The tasks of an agent, from their launch until the server has confirmed their end.

The table does no I/O: it receives messages from the server and spawners, and collects messages for them. A task is
`sent` to a spawner, then `running`, then `ended`. Each attempt of a task is accepted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

import msgspec

from fairlead.agent.launch_data import Surroundings, own_variables, spawner_spec
from fairlead.agent.report_queue import Entry, Reporting
from fairlead.agent.spawner.records import Key, Listing, Meta, Result, Spec
from fairlead.agent.spawner_balance import SpawnerBalance
from fairlead.wire.agent_messages import Launch, Meeting, Report, Stop, Tasks, Work
from fairlead.wire.index_spans import each_index, spans_of

Task = tuple[int, str, int]
"""Job number, stage, index: a task without its attempt."""
Frame = tuple[Any, ...]
"""A message for a spawner."""
NOT_STARTED: Result = ("returned", 0, "", 0, 0, 0)
EARLIER: Listing = ([], ["its files are not sent: they were collected by an earlier version of Fairlead on the node"])
WORDS = {
    "kill": "killed",
    "preempt": "preempted",
    "requeue": "requeued",
    "replace": "replaced",
    "scale": "scaled down",
    "gang": "its gang starts again",
    "done": "its job is done",
}
"""Cause of a stop → what a task is told, if that is another word."""
MAX_MEETINGS = 1_000
MAX_GONE = 200
"""Confirmed ends to collect before they are sent to a spawner."""


class TaskTable:
    def __init__(
        self,
        around: Surroundings,
        spawners: int,
        steady: Callable[[], float] = monotonic,
        machine_fails: Callable[[], bool] = lambda: True,
        keep_list: Callable[[str, Meta, int, Listing], None] = lambda user, meta, index, listing: None,
        choose_ports: Callable[[set[int]], tuple[int, int]] = lambda taken: (0, 0),
    ) -> None:
        """Create an empty table. `spawners` is the number of spawners shared by all users; 0 gives each user their own.

        `steady` is a clock that spawners have too. `machine_fails` is called if the spawner of a user cannot start a
        task. It returns True if the machine is the cause, False if it is a limit of that user. `keep_list` is called
        with the user of the spawner, the task and the list of its result files, before its end is reported.
        `choose_ports` returns two free ports that are not in a set.
        """
        self._keep_list = keep_list
        self._choose_ports = choose_ports
        self.meetings: dict[str, Meeting] = {}
        """Key of a generation of a gang → the ports that were chosen for it, of the last gangs."""
        self.chosen: list[Meeting] = []
        """Ports that the server has not been told yet."""
        self._steady = steady
        self._machine_fails = machine_fails
        self.grace = 30.0
        """Seconds that a task has to end after a stop."""
        self.reporting = Reporting()
        self.queued = 0
        """Number of tasks that wait for a free slot of their chain."""
        self.outbox: list[list[Frame]] = [[] for _ in range(spawners)]
        """Messages for each spawner. The sender empties it."""
        self.users: list[str] = [""] * spawners
        """The user of each spawner; empty if it runs the tasks of all users."""
        self.missing: dict[int, str] = {}
        """Spawners that cannot be started → why. They get no tasks. If all spawners of a user are missing, launches of
        the user are refused."""
        self._unsent: dict[int, list[Key]] = {}
        """Tasks that could not be sent, by their spawner, which has no link."""
        self._shared = range(spawners)
        self._ranges: dict[str, range] = {}
        """User → the numbers of the user's spawners."""
        self._around = around
        self._entries: dict[Key, Entry] = {}
        self._balance = SpawnerBalance(self.missing)
        self._live: dict[Task, Key] = {}
        """The attempt of each task that has not ended."""
        self._held: dict[Task, Entry] = {}
        """Later attempts, which wait until the live attempt of their task has ended."""
        self._node_faults: set[int] = set()
        """Missing spawners that could not be started because of the node, whatever their user does."""
        self._stop_at: dict[Key, float] = {}
        """Tasks that were told to stop → when their grace ends."""
        self._gone: list[dict[Key, None]] = [{} for _ in range(spawners)]
        """Confirmed ends, by spawner, that the spawner has not been told to drop yet."""
        self._specs: dict[tuple[int, bool], Spec] = {}
        """Cached specifications of the message being handled."""

    def spawners_of(self, user: str) -> range:
        """Return the numbers of the spawners that run the tasks of a user. Add one if the user has none yet."""
        spawners = self._shared or self._ranges.get(user)
        if not spawners:
            at = len(self.users)
            self.users.append(user)
            self.outbox.append([])
            self._gone.append({})
            spawners = self._ranges[user] = range(at, at + 1)
        return spawners

    def __len__(self) -> int:
        return len(self._entries)

    # -- orders of the server ------------------------------------------------------------------------------------

    def handle(self, work: Work) -> None:
        for stop in work.stops:
            self._stop(stop)
        if work.standing:
            self._forget_unnamed(work.launches)
        self._specs.clear()
        for spec in work.specs:
            self.spawners_of(spec.user)
        groups: list[list[Frame]] = [[] for _ in self.outbox]
        slots: list[dict[int, int]] = [{} for _ in self.outbox]
        launches = list(map(self._with_ports, work.launches))
        for launch in launches:
            if not launch.slots:
                self._launch(launch, work, groups)
        self._launch_chained([launch for launch in launches if launch.slots], work, groups, slots)
        for spawner, outbox in enumerate(self.outbox):
            if groups[spawner] or slots[spawner]:
                outbox.append(("launch", groups[spawner], slots[spawner]))

    def _with_ports(self, launch: Launch) -> Launch:
        """Return a launch with ports for its gang, if the server leaves their choice to this node."""
        gang = launch.gang
        if gang is None or gang.port:
            return launch
        if gang.key not in self.meetings:
            taken = {port for meeting in self.meetings.values() for port in (meeting.port, meeting.barrier)}
            self.meetings[gang.key] = Meeting(gang.key, *self._choose_ports(taken))
            self.chosen.append(self.meetings[gang.key])
            if len(self.meetings) > MAX_MEETINGS:
                del self.meetings[next(iter(self.meetings))]
        _, port, barrier = msgspec.structs.astuple(self.meetings[gang.key])
        return msgspec.structs.replace(launch, gang=msgspec.structs.replace(gang, port=port, barrier=barrier))

    def _launch_chained(
        self, launches: list[Launch], work: Work, groups: list[list[Frame]], slots: list[dict[int, int]]
    ) -> None:
        for chain, last in {launch.chain: launch for launch in launches}.items():
            self._set_slots(chain, last.slots, self.spawners_of(work.specs[last.spec].user), slots)
        for launch in launches:
            self._launch(launch, work, groups)

    def _set_slots(self, chain: int, number: int, among: range, slots: list[dict[int, int]]) -> None:
        """Divide the slots of a chain among spawners. Waiting tasks of a spawner without slots are returned."""
        self._balance.set_slots(chain, number, among)
        for spawner in among:
            slots[spawner][chain] = self._balance.slots_at(chain, spawner)
            if self._balance.stranded(chain, spawner):
                self._return_waiting(chain, spawner)

    def _launch(self, launch: Launch, work: Work, groups: list[list[Frame]]) -> None:
        tasks = launch.tasks
        meta = (tasks.job, tasks.number, tasks.stage, tasks.attempt)
        spec = self._spec_of(launch, work)
        own = own_variables(self._around, launch, work.specs[launch.spec], work.texts)
        among = self.spawners_of(work.specs[launch.spec].user)
        placed: dict[int, list[int]] = {spawner: [] for spawner in among}
        variables: dict[int, list[dict[str, str]]] = {spawner: [] for spawner in among}
        for at, index in enumerate(each_index(tasks.indices)):
            key = (tasks.number, tasks.stage, tasks.attempt, index)
            if key in self._entries:
                continue  # a repeated order: start the task only once
            spawner = self._balance.queue(launch.chain) if launch.slots else self._balance.place(launch.chain, among)
            entry = self._entries[key] = Entry(key, meta, spawner, launch.chain)
            entry.spec = spec
            entry.waits = launch.slots > 0
            self.queued += entry.waits
            if own is not None:
                entry.own = own[at]
            if all(candidate in self.missing for candidate in among):
                self._end(entry, ("refused", 0, self.missing[spawner], 0, 0, 0))
                continue
            task = (tasks.number, tasks.stage, index)
            if task in self._live:
                if task in self._held:
                    self._end(self._held[task], NOT_STARTED)
                self._held[task] = entry
                continue
            self._live[task] = key
            placed[spawner].append(index)
            if own is not None:
                variables[spawner].append(own[at])
        for spawner, indices in placed.items():
            if indices:
                group = (meta, spec, indices, launch.chain, launch.slots > 0, variables[spawner] if own else None)
                groups[spawner].append(group)

    def _spec_of(self, launch: Launch, work: Work) -> Spec:
        """Return the specification of a launch.

        Launches of one message that share a specification get the same object, which is sent to a spawner once.
        """
        if launch.gang is not None:
            return spawner_spec(self._around, launch, work.specs[launch.spec])
        key = (launch.spec, bool(launch.devices))
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = spawner_spec(self._around, launch, work.specs[launch.spec])
        return spec

    def _stop(self, stop: Stop) -> None:
        tasks = stop.tasks
        unknown: list[int] = []
        stopping: list[list[Key]] = [[] for _ in self.outbox]
        grace = stop.grace / 1e6 or self.grace
        for index in each_index(tasks.indices):
            key = (tasks.number, tasks.stage, tasks.attempt, index)
            entry = self._entries.get(key)
            if entry is None:
                unknown.append(index)
            elif self._is_held(entry):
                self._end(entry, NOT_STARTED)
            elif entry.state != "ended":
                stopping[entry.at].append(key)
                if stop.cause != "return":
                    self._stop_at.setdefault(key, self._steady() + grace)
        for spawner, keys in enumerate(stopping):
            if keys and stop.cause == "return":
                self.outbox[spawner].append(("return", keys))
            elif keys:
                self.outbox[spawner].append(("why", keys, WORDS.get(stop.cause, stop.cause)))
                self.outbox[spawner].append(("stop", [(key, grace) for key in keys]))
        if unknown:
            unknown_tasks = Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, spans_of(unknown))
            self.reporting.answer(Report(unknown_tasks, "stopped"))

    def _forget_unnamed(self, launches: Iterable[Launch]) -> None:
        """Return tasks that have not started and are not in the standing orders, because a stop was missed."""
        wanted: set[Key] = set()
        for launch in launches:
            tasks = launch.tasks
            wanted.update((tasks.number, tasks.stage, tasks.attempt, index) for index in each_index(tasks.indices))
        for entry in self._entries.values():
            if entry.state != "sent" or entry.key in wanted:
                continue
            if self._is_held(entry):
                self._end(entry, NOT_STARTED)
            else:
                self.outbox[entry.at].append(("return", [entry.key]))

    def _return_waiting(self, chain: int, spawner: int) -> None:
        keys = [
            entry.key
            for entry in self._entries.values()
            if entry.chain == chain and entry.at == spawner and entry.state == "sent" and entry.waits
        ]
        if keys:
            self.outbox[spawner].append(("return", keys))

    def not_sent(self, spawner: int, frames: Iterable[Frame]) -> None:
        """Keep tasks that could not be sent to a spawner. They are refused if the spawner cannot be started."""
        keys = self._unsent.setdefault(spawner, [])
        for kind, *rest in frames:
            if kind == "launch":
                for meta, _, indices, *_ in rest[0]:
                    keys += [(meta[1], meta[2], meta[3], index) for index in indices]

    # -- messages of spawners ------------------------------------------------------------------------------------

    def record(self, started: Sequence[Key], ended: Sequence[tuple[Key, Result]]) -> None:
        for key in started:
            self._begin(self._entries[key])
        for key, result in ended:
            self._end(self._entries[key], result)

    def find(self, spawner: int, tasks: Iterable[tuple[Meta, int, int, str, Result | None, float]]) -> None:
        """Record the full list of a spawner's tasks, which it sends when it connects."""
        self.missing.pop(spawner, None)
        self._node_faults.discard(spawner)
        self._unsent.pop(spawner, None)
        before = [key for key, entry in self._entries.items() if entry.at == spawner and not self._is_held(entry)]
        named: set[Key] = set()
        confirmed = set(self._gone[spawner])
        for meta, index, chain, state, result, began in tasks:
            key = (meta[1], meta[2], meta[3], index)
            named.add(key)
            if key in confirmed:
                continue  # the confirmation has not reached the spawner yet
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = Entry(key, meta, spawner, chain)
                self._balance.restore(spawner, chain)
                if state != "ended":
                    self._live[meta[1], meta[2], index] = key
            if entry.state == "ended":
                continue
            if state == "ended" and result is not None:
                self._end(entry, result)
            elif state != "waiting" and entry.state == "sent":
                self._begin(entry)
                entry.began = began
        for key in before:
            if key not in named:
                self._settle_unknown(self._entries[key])
        self.send_confirmed_ends()

    def mark_missing(self, spawner: int, why: str, node_fault: bool = False) -> None:
        """Mark a spawner as missing, because it cannot be started for now. Tasks that never reached it are refused.

        With `node_fault`, its user cannot be the cause, so no task of the user fails.
        """
        self.missing[spawner] = why
        if node_fault:
            self._node_faults.add(spawner)
        for key in self._unsent.pop(spawner, ()):
            entry = self._entries.get(key)
            if entry is not None and entry.state == "sent":
                self._end(entry, ("refused", 0, why, 0, 0, 0))

    def refuse(self, spawner: int, why: str) -> None:
        """End all tasks of a forbidden spawner: tasks not started fail, running tasks are lost."""
        for entry in list(self._entries.values()):
            if entry.at == spawner and entry.state != "ended":
                state = "failed" if entry.state == "sent" else "lost"
                self._end(entry, (state, 126, why, 0, 0, 0))

    def has_tasks_at(self, spawner: int) -> bool:
        return any(entry.at == spawner and entry.state != "ended" for entry in self._entries.values())

    def awaited(self) -> set[int]:
        """Return the spawners that were sent tasks to start at once and have not answered yet."""
        return {
            entry.at
            for entry in self._entries.values()
            if entry.state == "sent" and not entry.waits and not self._is_held(entry)
        }

    def overdue(self, seconds: float) -> set[int]:
        """Return the spawners with a task that has not ended within `seconds` after the grace of its stop.

        Each task is returned once.
        """
        late = [key for key, grace_end in self._stop_at.items() if self._steady() > grace_end + seconds]
        for key in late:
            del self._stop_at[key]
        return {self._entries[key].at for key in late}

    def _settle_unknown(self, entry: Entry) -> None:
        """End a task that its spawner does not have, or send it again if it cannot have started."""
        if entry.state == "running":
            self._end(entry, ("lost", 0, "its spawner does not know the task any more", 0, 0, 0))
        elif entry.state == "sent" and (entry.waits or entry.spec is None):
            self._end(entry, NOT_STARTED)
        elif entry.state == "sent":
            self._send(entry)

    def _send(self, entry: Entry) -> None:
        own = None if entry.own is None else [entry.own]
        group = (entry.meta, entry.spec, [entry.key[3]], entry.chain, entry.waits, own)
        self.outbox[entry.at].append(("launch", [group], {}))

    def _begin(self, entry: Entry) -> None:
        self.queued -= entry.waits
        entry.state = "running"
        entry.began = self._steady()
        self.reporting.report(entry)

    def _end(self, entry: Entry, result: Result) -> None:
        user = self.users[entry.at]
        self._stop_at.pop(entry.key, None)
        users_fault = result[0] == "refused" and user and entry.at not in self._node_faults
        if users_fault and not self._machine_fails():
            # A refusal pauses the node for all users, so a single user must not be able to cause it.
            why = f"{result[2]}; tasks of other users can start here, so {user} is over a limit"
            result = ("failed", 126, why, 0, 0, 0)
        if len(result) == 7:
            self._keep_list(user, entry.meta, entry.key[3], result[6] if isinstance(result[6], tuple) else EARLIER)
            result = (*result[:6], None)
        if entry.state == "sent":
            self.queued -= entry.waits
        if entry.state != "ended":
            self._balance.over(entry.at, entry.chain)
            self._make_way(entry)
        entry.state = "ended"
        entry.result = result
        entry.spec = entry.own = None
        self.reporting.report(entry)

    def _is_held(self, entry: Entry) -> bool:
        """True if an earlier attempt of the task has not ended yet: no task runs twice at the same time."""
        return bool(self._held) and self._held.get(_task_of(entry)) is entry

    def _make_way(self, entry: Entry) -> None:
        """Start the next attempt of the task, which waits for the end of this one."""
        task = _task_of(entry)
        if self._is_held(entry):
            del self._held[task]
        elif self._live.get(task) == entry.key:
            del self._live[task]
            later = self._held.pop(task, None)
            if later is not None:
                self._live[task] = later.key
                self._send(later)

    # -- ended tasks ---------------------------------------------------------------------------------------------

    @property
    def at_work(self) -> int:
        return len(self._live)

    def reconnected(self) -> None:
        self.reporting.reconnected(self._entries.values())

    def confirmed(self, number: int) -> None:
        """Drop the tasks of a batch of reports that the server has made durable."""
        for key in self.reporting.confirmed(number):
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._gone[entry.at][key] = None
        self.send_confirmed_ends(MAX_GONE)

    def send_confirmed_ends(self, least: int = 1) -> None:
        """Send confirmed ends to spawners that have at least `least` of them, so that they can drop the tasks.

        This is not urgent, so small numbers are collected to save messages.
        """
        for spawner, keys in enumerate(self._gone):
            if len(keys) >= least:
                self.outbox[spawner].append(("confirm", list(keys)))
                self._gone[spawner] = {}

    def started(self, *states: str) -> tuple[Tasks, ...]:
        groups: dict[Meta, list[int]] = {}
        for entry in self._entries.values():
            if entry.state in states:
                groups.setdefault(entry.meta, []).append(entry.key[3])
        return tuple(Tasks(*meta, spans_of(indices)) for meta, indices in groups.items())

    def run_times(self, groups: Iterable[Tasks]) -> tuple[int, ...]:
        """Return the average run time so far of each group of running tasks, in microseconds."""
        now = self._steady()
        times: list[int] = []
        for group in groups:
            began = [
                self._entries[group.number, group.stage, group.attempt, index].began
                for index in each_index(group.indices)
            ]
            times.append(max(0, int((now - sum(began) / len(began)) * 1_000_000)))
        return tuple(times)

    def is_over(self, number: int, stage: str, attempt: int, index: int) -> bool:
        entry = self._entries.get((number, stage, attempt, index))
        return entry is None or entry.state == "ended"


def _task_of(entry: Entry) -> Task:
    number, stage, _, index = entry.key
    return number, stage, index
