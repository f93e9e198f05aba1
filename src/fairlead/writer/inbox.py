"""The inbox, where messages wait for the next cycle. Commands and agents' reports have separate limits.

Users take turns, so that a flood of commands from one user does not delay the commands of other users. Every accepted
message gets a reply; if the inbox is full, it refuses a message at once. No call blocks. Only the thread of one asyncio
loop may use an inbox, so it has no locks.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from fairlead.core.commands import Answer, Command, Report
from fairlead.engines.engine import Busy


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """The reply if the writer ended before it answered a command. Send the command again, to the next writer."""

    why: str
    doubtful: bool = False
    """True if the command may have been carried out. If False, it certainly was not."""

    def __str__(self) -> str:
        advice = (
            "it may have been done; ask again with the same key" if self.doubtful else "nothing was done; ask again"
        )
        return f"{self.why}; {advice}"


Reply = Answer | Unavailable
Slot = asyncio.Future[Reply]


class Message(msgspec.Struct, frozen=True):
    """A waiting command and the slot for its reply."""

    command: Command
    slot: Slot

    def reply(self, reply: Reply) -> None:
        if not self.slot.done():  # done if the caller has cancelled it
            self.slot.set_result(reply)


class Inbox:
    def __init__(
        self,
        max_commands: int = 10_000,
        max_reports: int = 10_000,
        report_credit: int = 1_000,
        command_credit: int = 5_000,
    ) -> None:
        """Set the limits of waiting commands and reports.

        `command_credit` limits the waiting commands of one user, `report_credit` the waiting reports of one node.
        """
        self.max_commands = max_commands
        self.max_reports = max_reports
        self.report_credit = report_credit
        self.command_credit = command_credit
        self.refused_commands = 0
        self.refused_reports = 0
        self._commands: dict[str, deque[Message]] = {}
        """User → its waiting commands. The server's own commands have an empty user."""
        self._turns: deque[str] = deque()
        """Users with waiting commands, in the order of their turns."""
        self._waiting = 0
        """Number of waiting commands."""
        self._reports: deque[Message] = deque()
        self._owed: Counter[str] = Counter()
        """Node → number of its waiting reports."""
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
        """Set the function to call after each accepted message."""
        self._arrived = arrived

    def offer(self, command: Command) -> Slot:
        """Accept a command and return a future for its reply. Raises `Busy` if there is no space for it.

        Cancelling the future discards the reply; it does not withdraw the command.
        """
        slot: Slot = asyncio.get_running_loop().create_future()
        if self._closed:
            slot.set_result(Unavailable(self._closed))
            return slot
        message = Message(command, slot)
        if isinstance(command, Report):
            self._take_report(message, command.node)
        else:
            self._take_command(message, command.user)
        if self._arrived is not None:
            self._arrived()
        return slot

    def drain(self, max_batch: int) -> list[Message]:
        """Remove and return the messages of the next cycle: all waiting reports, then up to `max_batch` commands.

        Reports come in the order of arrival. Users take turns with one command each; the commands of one user keep
        their order.
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
        """Answer later offers with `Unavailable`. Accepted messages keep waiting for a cycle."""
        self._closed = self._closed or why

    def give_up(self, why: str) -> None:
        """Close the inbox and answer all waiting messages with `Unavailable`."""
        self.close(why)
        for message in self.drain(self._waiting):
            message.reply(Unavailable(why))

    def _take_command(self, message: Message, user: str) -> None:
        if self._waiting >= self.max_commands:
            self.refused_commands += 1
            raise Busy(f"the inbox is full: {self.max_commands} commands wait; try again in a moment")
        waiting = self._commands.get(user)
        if waiting is None:
            waiting = self._commands[user] = deque()
            self._turns.append(user)
        elif user and len(waiting) >= self.command_credit:
            self.refused_commands += 1
            raise Busy(f"user {user}: {self.command_credit} of its commands wait; try again in a moment")
        waiting.append(message)
        self._waiting += 1

    def _take_report(self, message: Message, node: str) -> None:
        if self._owed[node] >= self.report_credit:
            self.refused_reports += 1
            raise Busy(
                f"node {node}: {self.report_credit} of its reports wait, the most for one node; "
                "send it again when one of them is confirmed"
            )
        if len(self._reports) >= self.max_reports:
            self.refused_reports += 1
            raise Busy(f"the inbox is full: {self.max_reports} reports wait; send it again in a moment")
        self._owed[node] += 1
        self._reports.append(message)
