"""The inbox by itself: bounds, credit, order, and a reply for everything that was taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.core.commands import Accepted, Command, Kill, Report
from fairlead.engines.engine import Busy
from fairlead.writer.inbox import Inbox, Unavailable


def kill(at: int, user: str = "ann") -> Kill:
    return Kill(job=f"j{at}", user=user, operator=True)


def report(node: str, at: int = 0) -> Report:
    return Report(node=node, job=f"j{at}", stage="main", indices=(0, 1), attempt=1, state="running")


def drained(inbox: Inbox, max_batch: int) -> list[Command]:
    return [message.command for message in inbox.drain(max_batch)]


def in_loop(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(story(), 30)

    asyncio.run(main())


def test_reports_come_first_and_each_sort_keeps_its_order() -> None:
    async def story() -> None:
        inbox = Inbox()
        sent = [kill(0), report("b", 1), kill(2), report("a", 3), report("b", 4), kill(5)]
        for command in sent:
            inbox.offer(command)
        assert (inbox.waiting, inbox.waiting_commands, inbox.waiting_reports) == (6, 3, 3)
        # The bound on commands is not one on reports, and no report takes a command's place.
        assert drained(inbox, 2) == [sent[1], sent[3], sent[4], sent[0], sent[2]]
        assert drained(inbox, 2) == [sent[5]]
        assert drained(inbox, 2) == []

    in_loop(story)


def test_a_full_inbox_refuses_at_once() -> None:
    async def story() -> None:
        inbox = Inbox(max_commands=3, max_reports=2, report_credit=2)
        for at in range(3):
            inbox.offer(kill(at))
        with pytest.raises(Busy, match=r"^the inbox is full: 3 commands wait; try again in a moment$"):
            inbox.offer(kill(3))
        inbox.offer(report("a"))  # a flood of commands leaves room for reports
        inbox.offer(report("b"))
        with pytest.raises(Busy, match=r"^the inbox is full: 2 reports wait; send it again in a moment$"):
            inbox.offer(report("c"))
        assert (inbox.refused_commands, inbox.refused_reports) == (1, 1)
        assert len(inbox.drain(1)) == 3
        inbox.offer(kill(4))
        assert drained(inbox, 10) == [kill(1), kill(2), kill(4)]

    in_loop(story)


def test_one_node_cannot_take_the_room_of_others() -> None:
    async def story() -> None:
        inbox = Inbox(max_reports=10, report_credit=2)
        inbox.offer(report("a", 0))
        inbox.offer(report("a", 1))
        with pytest.raises(Busy, match=r"^node a: 2 of its reports wait, the most for one node; send it again"):
            inbox.offer(report("a", 2))
        inbox.offer(report("b", 3))
        assert inbox.refused_reports == 1
        inbox.drain(1)
        inbox.offer(report("a", 2))  # the credit is back
        assert drained(inbox, 1) == [report("a", 2)]

    in_loop(story)


def test_users_take_turns() -> None:
    async def story() -> None:
        inbox = Inbox(max_commands=20, command_credit=8)
        for at in range(8):
            inbox.offer(kill(at, "ann"))
        with pytest.raises(Busy, match=r"^user ann: 8 of its commands wait; try again in a moment$"):
            inbox.offer(kill(8, "ann"))
        for at in range(2):
            inbox.offer(kill(at, "bob"))
        inbox.offer(kill(0, "carl"))
        assert drained(inbox, 4) == [kill(0, "ann"), kill(0, "bob"), kill(0, "carl"), kill(1, "ann")]
        inbox.offer(kill(1, "carl"))
        assert drained(inbox, 3) == [kill(1, "bob"), kill(2, "ann"), kill(1, "carl")]
        assert drained(inbox, 100) == [kill(at, "ann") for at in range(3, 8)]
        assert inbox.waiting == 0 and inbox.refused_commands == 1

    in_loop(story)


def test_the_listener_is_called_for_accepted_messages_only() -> None:
    async def story() -> None:
        lengths: list[int] = []
        inbox = Inbox(max_commands=2)
        inbox.listen(lambda: lengths.append(inbox.waiting))
        inbox.offer(kill(0))
        inbox.offer(kill(1))
        with pytest.raises(Busy):
            inbox.offer(kill(2))
        assert lengths == [1, 2]

    in_loop(story)


def test_closed_and_given_up() -> None:
    async def story() -> None:
        inbox = Inbox()
        waiting = [inbox.offer(kill(0)), inbox.offer(report("a"))]
        inbox.close("it is closing")
        late = inbox.offer(kill(1))
        assert await late == Unavailable("it is closing")
        assert str(await late) == "it is closing; nothing was done; ask again"
        assert not any(slot.done() for slot in waiting)
        inbox.give_up("it has ended")
        assert [await slot for slot in waiting] == [Unavailable("it has ended")] * 2
        assert inbox.waiting == 0

    in_loop(story)


def test_a_caller_may_have_gone() -> None:
    async def story() -> None:
        inbox = Inbox()
        inbox.offer(kill(0)).cancel()
        slot = inbox.offer(kill(1))
        for message in inbox.drain(10):  # an accepted command is not withdrawn
            message.reply(Accepted(job=message.command.job))  # type: ignore[union-attr]
        assert await slot == Accepted(job="j1")

    in_loop(story)
