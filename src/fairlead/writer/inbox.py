"""The inbox: where messages wait for their cycle. Bounded, with a place of their own for agents' reports.

Users take turns: however many commands one of them sends, another's next command is in the next cycle.

What is taken gets a reply, always; what cannot be taken is refused at once. Nothing blocks and nothing is dropped.
All of it is for one asyncio loop and its thread: there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from time import monotonic

import msgspec

from fairlead.core.commands import Answer, AnyCommand, Report
from fairlead.writer.clock import Steady


class Full(Exception):
    """There is no place now. Nothing was taken: ask again in a moment."""


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """The writer ended before there was an answer: ask the next one."""

    why: str
    doubtful: bool = False
    """Whether it may have been done all the same. Otherwise it certainly was not."""

    def __str__(self) -> str:
        known = "it may have been done; ask again with the same key" if self.doubtful else "nothing was done; ask again"
        return f"{self.why}; {known}"


Reply = Answer | Unavailable
Slot = asyncio.Future[Reply]


class Message(msgspec.Struct, frozen=True):
    """A command that waits, and where its reply goes."""

    command: AnyCommand
    slot: Slot
    arrived: float
    """When, by the clock of the inbox."""

    def reply(self, reply: Reply) -> None:
        # Who asked may have gone; the command was taken all the same.
        if not self.slot.done():
            self.slot.set_result(reply)


class Inbox:
    def __init__(
        self,
        max_commands: int = 10_000,
        max_reports: int = 10_000,
        report_credit: int = 1_000,
        command_credit: int = 5_000,
        steady: Steady = monotonic,
    ) -> None:
        """How many commands and reports may wait; how many reports of one node, and how many commands of one user.

        `steady` says when messages arrive; whoever drains the inbox goes by the same clock.
        """
        self.max_commands = max_commands
        self.max_reports = max_reports
        self.report_credit = report_credit
        self.command_credit = command_credit
        self.steady = steady
        self.refused_commands = 0
        self.refused_reports = 0
        self._commands: dict[str, deque[Message]] = {}
        """User → its commands that wait. Those of the server itself have an empty name."""
        self._turns: deque[str] = deque()
        """The users with commands that wait, in the order of their turns."""
        self._waiting = 0
        """How many commands wait."""
        self._reports: deque[Message] = deque()
        self._owed: Counter[str] = Counter()
        """Node → how many of its reports wait."""
        self._closed: str = ""
        self._arrived: Callable[[], None] | None = None

    @property
    def waiting_commands(self) -> int:
        return self._waiting

    @property
    def waiting_reports(self) -> int:
        return len(self._reports)

    @property
    def waiting(self) -> int:
        return self._waiting + len(self._reports)

    def listen(self, arrived: Callable[[], None]) -> None:
        """Have this called after each message that was taken."""
        self._arrived = arrived

    def offer(self, command: AnyCommand) -> Slot:
        """Take a command, and give the slot in which its reply will be; `Full` means that it was not taken.

        To cancel the slot is to lose interest in the reply: the command is not withdrawn by it.
        """
        slot: Slot = asyncio.get_running_loop().create_future()
        if self._closed:
            slot.set_result(Unavailable(self._closed))
            return slot
        message = Message(command, slot, self.steady())
        if isinstance(command, Report):
            self._take_report(message, command.node)
        else:
            self._take_command(message, command.user)
        if self._arrived is not None:
            self._arrived()
        return slot

    def drain(self, max_batch: int) -> list[Message]:
        """What the next cycle takes: every report that waits, as they came, then up to `max_batch` commands.

        Users take turns, with one command each; those of one user are in the order in which they came.

        A flood of one sort does not keep the other from any cycle; the bound on reports is that of the inbox.
        """
        batch = list(self._reports)
        self._reports.clear()
        self._owed.clear()
        for _ in range(min(max_batch, self._waiting)):
            user = self._turns.popleft()
            waiting = self._commands[user]
            batch.append(waiting.popleft())
            if waiting:
                self._turns.append(user)
            else:
                del self._commands[user]
            self._waiting -= 1
        return batch

    def close(self, why: str) -> None:
        """From now on whoever offers gets `Unavailable`. What waits goes on waiting."""
        self._closed = self._closed or why

    def give_up(self, why: str) -> None:
        """Close, and answer everything that waits with `Unavailable`."""
        self.close(why)
        for message in self.drain(self._waiting):
            message.reply(Unavailable(why))

    def _take_command(self, message: Message, user: str) -> None:
        if self._waiting >= self.max_commands:
            self.refused_commands += 1
            raise Full(f"the inbox is full: {self.max_commands} commands wait; try again in a moment")
        waiting = self._commands.get(user)
        if waiting is None:
            waiting = self._commands[user] = deque()
            self._turns.append(user)
        elif user and len(waiting) >= self.command_credit:
            self.refused_commands += 1
            raise Full(f"user {user}: {self.command_credit} of its commands wait; try again in a moment")
        waiting.append(message)
        self._waiting += 1

    def _take_report(self, message: Message, node: str) -> None:
        if self._owed[node] >= self.report_credit:
            self.refused_reports += 1
            raise Full(
                f"node {node}: {self.report_credit} of its reports wait, as many as one node may have; "
                "send it again when one of them is confirmed"
            )
        if len(self._reports) >= self.max_reports:
            self.refused_reports += 1
            raise Full(f"the inbox is full: {self.max_reports} reports wait; send it again in a moment")
        self._owed[node] += 1
        self._reports.append(message)
