"""What an agent knows of its tasks, from the launch until the server has confirmed the end.

It does no I/O: it is told what the server and the spawners say, and says what they are to be told. A task is `sent`
to a spawner, `running`, and `ended`. (task, attempt) is known by its key and is taken once.
From the top: the server's orders, the spawners' news, what is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.agent.entries import NOT_STARTED, Entry, Frame, Key, Meta, Result, Task
from fairlead.agent.launching import (
    PER_FOLDER,
    SpawnerSpec,
    Surroundings,
    each_of,
    flat_of,
    own_variables,
    spawner_spec,
)
from fairlead.agent.reporting import Reporting
from fairlead.agent.spawner_balance import Rooms
from fairlead.wire.agent import Launch, Report, Stop, Tasks, Work

MOST_GONE = 200
"""Ends that are confirmed, before a spawner hears of it."""


class TaskTable:
    def __init__(self, around: Surroundings, spawners: int) -> None:
        """`spawners` run the tasks of all users; with 0 of them, each user has one of its own."""
        self.grace = 30.0
        """Seconds that a task has to end when it is told to stop."""
        self.reporting = Reporting()
        self.queued = 0
        """How many tasks wait for a room of their chain."""
        self.outbox: list[list[Frame]] = [[] for _ in range(spawners)]
        """What spawners are to be told; whoever sends it empties it."""
        self.users: list[str] = [""] * spawners
        """The user of each spawner; empty if it runs the tasks of all."""
        self.missing: dict[int, str] = {}
        """Spawners that cannot be started → why. They get no tasks; while all of a user are missing, its launches are
        refused."""
        self._unsent: dict[int, list[Key]] = {}
        """What spawners without a link were to start."""
        self._shared = range(spawners)
        self._ranges: dict[str, range] = {}
        """The spawner of each user."""
        self._around = around
        self._entries: dict[Key, Entry] = {}
        self._rooms = Rooms(self.missing)
        self._live: dict[Task, Key] = {}
        """The attempt of each task that has not ended."""
        self._held: dict[Task, Entry] = {}
        """Later attempts of these, which wait until that has."""
        self._gone: list[list[Key]] = [[] for _ in range(spawners)]
        """Ends that are confirmed, and that spawners keep until they hear of it."""
        self._specs: dict[tuple[int, int, bool], SpawnerSpec] = {}
        """Of the message that is being heeded."""

    def spawners_of(self, user: str) -> range:
        """The numbers of the spawners that run the tasks of a user; a new one if it has none yet."""
        found = self._shared or self._ranges.get(user)
        if not found:
            at = len(self.users)
            self.users.append(user)
            self.outbox.append([])
            self._gone.append([])
            found = self._ranges[user] = range(at, at + 1)
        return found

    def __len__(self) -> int:
        return len(self._entries)

    # -- what the server says ------------------------------------------------------------------------------------

    def handle(self, work: Work) -> None:
        for stop in work.stops:
            self._stop(stop)
        if work.standing:
            self._forget_unnamed(work.launches)
        self._specs.clear()
        for spec in work.specs:
            self.spawners_of(spec.user)
        groups: list[list[Frame]] = [[] for _ in self.outbox]
        rooms: list[dict[int, int]] = [{} for _ in self.outbox]
        for launch in work.launches:
            if not launch.rooms:
                self._launch(launch, work, groups)
        for chain, (many, user) in {
            each.chain: (each.rooms, work.specs[each.spec].user) for each in work.launches if each.rooms
        }.items():
            among = self.spawners_of(user)
            self._rooms.set_rooms(chain, many, among)
            for spawner in among:
                rooms[spawner][chain] = self._rooms.rooms_at(chain, spawner)
                if self._rooms.stranded(chain, spawner):
                    self._return_waiting(chain, spawner)
        for launch in work.launches:
            if launch.rooms:
                self._launch(launch, work, groups)
        for spawner, outbox in enumerate(self.outbox):
            if groups[spawner] or rooms[spawner]:
                outbox.append(("launch", groups[spawner], rooms[spawner]))

    def _launch(self, launch: Launch, work: Work, groups: list[list[Frame]]) -> None:
        tasks = launch.tasks
        meta = (tasks.job, tasks.number, tasks.stage, tasks.attempt)
        spec = self._spec_of(launch, work)
        own = own_variables(self._around, launch)
        among = self.spawners_of(work.specs[launch.spec].user)
        given: dict[int, list[int]] = {spawner: [] for spawner in among}
        theirs: dict[int, list[dict[str, str]]] = {spawner: [] for spawner in among}
        for at, index in enumerate(each_of(tasks.indices)):
            key = (tasks.number, tasks.stage, tasks.attempt, index)
            if key in self._entries:
                continue  # sent again: it is started once
            spawner = self._rooms.queue(launch.chain) if launch.rooms else self._rooms.place(launch.chain, among)
            entry = self._entries[key] = Entry(key, meta, spawner, launch.chain)
            entry.spec = spec
            entry.waits = launch.rooms > 0
            self.queued += entry.waits
            if own is not None:
                entry.own = own[at]
            if all(each in self.missing for each in among):
                self._end(entry, ("refused", 0, self.missing[spawner], 0, 0, 0))
                continue
            task = (tasks.number, tasks.stage, index)
            if task in self._live:
                if task in self._held:
                    self._end(self._held[task], NOT_STARTED)
                self._held[task] = entry
                continue
            self._live[task] = key
            given[spawner].append(index)
            if own is not None:
                theirs[spawner].append(own[at])
        for spawner, indices in given.items():
            if indices:
                group = (meta, spec, indices, launch.chain, launch.rooms > 0, theirs[spawner] if own else None)
                groups[spawner].append(group)

    def _spec_of(self, launch: Launch, work: Work) -> SpawnerSpec:
        """The same object for all launches of a message that have it in common: it is then sent to a spawner once."""
        if launch.gang is not None:
            return spawner_spec(self._around, launch, work.specs[launch.spec])
        key = (launch.spec, launch.tasks.number // PER_FOLDER, bool(launch.devices))
        found = self._specs.get(key)
        if found is None:
            found = self._specs[key] = spawner_spec(self._around, launch, work.specs[launch.spec])
        return found

    def _stop(self, stop: Stop) -> None:
        tasks = stop.tasks
        unknown: list[int] = []
        asked: list[list[Key]] = [[] for _ in self.outbox]
        for index in each_of(tasks.indices):
            key = (tasks.number, tasks.stage, tasks.attempt, index)
            entry = self._entries.get(key)
            if entry is None:
                unknown.append(index)
            elif self._is_held(entry):
                self._end(entry, NOT_STARTED)
            elif entry.state != "ended":
                asked[entry.at].append(key)
        for spawner, keys in enumerate(asked):
            if keys and stop.cause == "return":
                self.outbox[spawner].append(("return", keys))
            elif keys:
                self.outbox[spawner].append(("stop", [(key, self.grace) for key in keys]))
        if unknown:
            gone = Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, flat_of(unknown))
            self.reporting.answer(Report(gone, "stopped"))

    def _forget_unnamed(self, launches: Iterable[Launch]) -> None:
        """What has not started and is not wanted any more. A stop may have been missed meanwhile."""
        wanted: set[Key] = set()
        for launch in launches:
            tasks = launch.tasks
            wanted.update((tasks.number, tasks.stage, tasks.attempt, index) for index in each_of(tasks.indices))
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
        """A spawner has no link: it gets what it does not know when it is back, or what it was to start is refused."""
        keys = self._unsent.setdefault(spawner, [])
        for what, *rest in frames:
            if what == "launch":
                for meta, _, indices, *_ in rest[0]:
                    keys += [(meta[1], meta[2], meta[3], index) for index in indices]

    # -- what spawners say ---------------------------------------------------------------------------------------

    def hear(self, started: Sequence[Key], ended: Sequence[tuple[Key, Result]]) -> None:
        for key in started:
            self._begin(self._entries[key])
        for key, result in ended:
            self._end(self._entries[key], result)

    def find(self, spawner: int, known: Iterable[tuple[Meta, int, int, str, Result | None]]) -> None:
        """A spawner says all that it knows: at first, and when it was started again."""
        self.missing.pop(spawner, None)
        self._unsent.pop(spawner, None)
        before = [key for key, entry in self._entries.items() if entry.at == spawner and not self._is_held(entry)]
        named: set[Key] = set()
        confirmed = set(self._gone[spawner])
        for meta, index, chain, state, result in known:
            key = (meta[1], meta[2], meta[3], index)
            named.add(key)
            if key in confirmed:
                continue  # the spawner has not heard of it yet
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = Entry(key, meta, spawner, chain)
                self._rooms.restore(spawner, chain)
                if state != "ended":
                    self._live[meta[1], meta[2], index] = key
            if entry.state == "ended":
                continue
            if state == "ended" and result is not None:
                self._end(entry, result)
            elif state != "waiting" and entry.state == "sent":
                self._begin(entry)
        for key in before:
            if key not in named:
                self._settle_unknown(self._entries[key])
        self.tell_confirmed()

    def miss(self, spawner: int, why: str) -> None:
        """A spawner cannot be started for now. What it was to start, and never heard of, is refused."""
        self.missing[spawner] = why
        for key in self._unsent.pop(spawner, ()):
            entry = self._entries.get(key)
            if entry is not None and entry.state == "sent":
                self._end(entry, ("refused", 0, why, 0, 0, 0))

    def refuse(self, spawner: int, why: str) -> None:
        """There can be no such spawner: what it was to start fails."""
        for entry in list(self._entries.values()):
            if entry.at == spawner and entry.state != "ended":
                state = "failed" if entry.state == "sent" else "lost"
                self._end(entry, (state, 126, why, 0, 0, 0))

    def has_tasks_at(self, spawner: int) -> bool:
        """True if a spawner has tasks that have not ended."""
        return any(entry.at == spawner and entry.state != "ended" for entry in self._entries.values())

    def _settle_unknown(self, entry: Entry) -> None:
        """A spawner does not know a task that it was sent. It writes down what it takes, so it did not."""
        if entry.state == "running":
            self._end(entry, ("lost", 0, "its spawner does not know it any more", 0, 0, 0))
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
        self.reporting.tell(entry)

    def _end(self, entry: Entry, result: Result) -> None:
        if entry.state == "sent":
            self.queued -= entry.waits
        if entry.state != "ended":
            self._rooms.over(entry.at, entry.chain)
            self._make_way(entry)
        entry.state = "ended"
        entry.result = result
        entry.spec = entry.own = None
        self.reporting.tell(entry)

    def _is_held(self, entry: Entry) -> bool:
        """Whether an earlier attempt of its task has yet to end: no task runs twice at once."""
        return bool(self._held) and self._held.get(entry.task) is entry

    def _make_way(self, entry: Entry) -> None:
        task = entry.task
        if self._is_held(entry):
            del self._held[task]
        elif self._live.get(task) == entry.key:
            del self._live[task]
            later = self._held.pop(task, None)
            if later is not None:
                self._live[task] = later.key
                self._send(later)

    # -- what is over --------------------------------------------------------------------------------------------

    @property
    def at_work(self) -> int:
        """How many tasks have not ended."""
        return len(self._live)

    def reconnected(self) -> None:
        """There is a new connection to the server."""
        self.reporting.reconnected(self._entries.values())

    def confirmed(self, number: int) -> None:
        """The server has made a batch of reports durable."""
        for key in self.reporting.confirmed(number):
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._gone[entry.at].append(key)
        self.tell_confirmed(MOST_GONE)

    def tell_confirmed(self, least: int = 1) -> None:
        """Tell spawners which ends are of no more use. There is no hurry, and each message costs both something."""
        for spawner, keys in enumerate(self._gone):
            if len(keys) >= least:
                self.outbox[spawner].append(("confirm", keys))
                self._gone[spawner] = []

    def started(self, *states: str) -> tuple[Tasks, ...]:
        """The tasks in these states, by stage and attempt."""
        groups: dict[Meta, list[int]] = {}
        for entry in self._entries.values():
            if entry.state in states:
                groups.setdefault(entry.meta, []).append(entry.key[3])
        return tuple(Tasks(*meta, flat_of(indices)) for meta, indices in groups.items())

    def is_over(self, number: int, stage: str, attempt: int, index: int) -> bool:
        entry = self._entries.get((number, stage, attempt, index))
        return entry is None or entry.state == "ended"
