"""A second implementation of the turns of users, for the checkers: present and past use, in fractions.

Past use is added up from cycle to cycle. The core rounds it down when its landmark moves, so uses that are nearly
equal, or become equal by rounding, have no certain order.
"""

from __future__ import annotations

from fractions import Fraction

from fairlead.core.model import Ask, Stage
from fairlead.core.state import Partition
from tests.chaos.tasks import Micros, indices

TASKS = ""
NEARLY = Fraction(1, 10**9)
ROUNDED = Fraction(1, 10**15)
"""More than the core's rounding takes from past use, as a part of the total weight (half-lives are minutes)."""

User = tuple[str, str]
"""The path of a leaf and the name of a user."""
Amounts = dict[str, Fraction]


class UserUses:
    """The use of users in leaves with order `fair`."""

    def __init__(self, partition: Partition) -> None:
        self._half_life = 0
        self._began = self._seen = 0
        self._past: dict[User, Amounts] = {}
        self._restart(partition)
        weight = partition.weight()
        for path, user, account in partition.remembered():
            if user:
                past = partition.past_of(account).items()
                self._past[path, user] = {name: Fraction(amount, weight) * self._total() for name, amount in past}

    def pass_time(self, partition: Partition, now: Micros) -> None:
        """Add the use since the last cycle."""
        if self._half_life:
            before = self._total()
            self._seen = now
            for user, used in _present(partition).items():
                past = self._past.setdefault(user, {})
                for name, amount in used.items():
                    past[name] = past.get(name, Fraction(0)) + amount * (self._total() - before)
        self._seen = now

    def follow(self, partition: Partition) -> None:
        """Follow a change of the configuration."""
        if partition.settings.share_memory != self._half_life:
            parts = {
                user: {name: amount / self._total() for name, amount in past.items()}
                for user, past in (self._past if self._half_life else {}).items()
            }
            self._restart(partition)
            on = self._half_life > 0
            self._past = {
                user: {name: part * self._total() for name, part in past.items()} for user, past in parts.items() if on
            }
        fair = {path for path, queue in partition.queues.items() if queue.settings.order == "fair"}
        self._past = {user: past for user, past in self._past.items() if user[0] in fair}

    def compare(self, partition: Partition, one: Ask, other: Ask, more: list[tuple[Stage, int]]) -> int:
        """Return -1 if the user of `one` certainly has the turn before the user of `other`, 1 if after, else 0.

        `more` are tasks that count as started.
        """
        present = _present(partition)
        for stage, tasks in more:
            _add(present.setdefault(user_of(stage), {}), stage, tasks)
        users = [user_of(ask.stage) for ask in (one, other)]
        uses = [self._use(partition, user, present.get(user, {})) for user in users]
        if users[0] == users[1]:
            return 0
        if not self._half_life:
            places = [(use, user[1]) for use, user in zip(uses, users, strict=True)]
            return -1 if places[0] < places[1] else 1
        if abs(uses[0] - uses[1]) <= NEARLY * max(uses) + ROUNDED * self._total():
            return 0
        return -1 if uses[0] < uses[1] else 1

    def _use(self, partition: Partition, user: User, present: dict[str, int]) -> Fraction:
        past = self._past.get(user, {}) if self._half_life else {}
        weight = self._total() if self._half_life else Fraction(1)
        total = {name: present.get(name, 0) * weight + past.get(name, Fraction(0)) for name in {**present, **past}}
        if partition.settings.unit == "slots":
            return total.get(TASKS, Fraction(0))
        capacity = partition.nodes.total
        parts = [amount / (capacity.get(name) or 1) for name, amount in total.items() if name != TASKS]
        return max(parts, default=Fraction(0))

    def _restart(self, partition: Partition) -> None:
        """Start counting half-lives at the partition's landmark, as a loaded partition does."""
        self._half_life = partition.settings.share_memory
        self._began, self._seen = partition.landmark, partition.now

    def _total(self) -> Fraction:
        """Return the total weight of past time, in half-lives. Each counts one and a half times its initial weight."""
        whole, rest = divmod(self._seen - self._began, self._half_life)
        total = Fraction(3, 2)  # all time before
        for doubling in range(whole):
            total += Fraction(3, 2) * 2**doubling
        part = Fraction(rest, self._half_life)
        return total + Fraction(2**whole) * (part + part * part / 2)


def user_of(stage: Stage) -> User:
    return stage.job.queue.path, stage.job.spec.user


def _present(partition: Partition) -> dict[User, dict[str, int]]:
    present: dict[User, dict[str, int]] = {}
    for allocation in partition.allocations.values():
        if not allocation.slots and allocation.stage.job.queue.settings.order == "fair":
            tasks = len(indices(allocation.indices))
            _add(present.setdefault(user_of(allocation.stage), {}), allocation.stage, tasks)
    return present


def _add(used: dict[str, int], stage: Stage, tasks: int) -> None:
    for name, amount in ((TASKS, 1), *stage.shape.key.resources):
        used[name] = used.get(name, 0) + amount * tasks
