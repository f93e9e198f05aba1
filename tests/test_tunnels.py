"""Both ends of a tunnel without I/O: what is sent arrives once and in order, whatever breaks, in bounded memory."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.agent.spawner import relay as relay_module
from fairlead.agent.spawner.relay import MOST, PATIENCE, Input, Relay
from fairlead.agent.spawner.task_start import Ends
from fairlead.wire.tunnel_frames import (
    CONNECTIONS,
    COUNT,
    DATA,
    END,
    HELLO,
    NUMBER,
    OPEN,
    PIECE,
    STANDARD,
    USED,
    WINDOW,
    Broken,
    Tunnel,
    _frame,
)
from tests.until import until


class Link:
    """A connection between two ends, which may lose what is on its way."""

    def __init__(self, one: Tunnel, other: Tunnel) -> None:
        self.ends = (one, other)
        self.on_the_way = [b"", b""]
        self.got: list[dict[int, bytes]] = [{}, {}]
        self.ended: list[set[int]] = [set(), set()]
        self.unused: list[dict[int, int]] = [{}, {}]

    def connect(self) -> None:
        self.on_the_way = [b"", b""]
        for end in self.ends:
            end.disconnect()
            end.connect()

    def move(self, side: int, most: int = 1 << 30) -> None:
        """Carry bytes from one end to the other."""
        self.on_the_way[side] += self.ends[side].take()
        piece, self.on_the_way[side] = self.on_the_way[side][:most], self.on_the_way[side][most:]
        for kind, channel, content in self.ends[1 - side].receive(piece):
            if kind == DATA:
                self.got[1 - side][channel] = self.got[1 - side].get(channel, b"") + content
                self.unused[1 - side][channel] = self.unused[1 - side].get(channel, 0) + len(content)
            elif kind == END:
                self.ended[1 - side].add(channel)

    def use(self, side: int) -> None:
        for channel, size in self.unused[side].items():
            self.ends[side].use(channel, size)
        self.unused[side] = {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3), st.integers(1, PIECE)),
        st.tuples(st.just("move"), st.integers(0, 1), st.integers(1, 3 * PIECE)),
        st.tuples(st.just("use"), st.integers(0, 1)),
        st.tuples(st.just("break")),
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_everything_arrives_once_and_in_order(steps: list[tuple[object, ...]]) -> None:
    link = Link(Tunnel(), Tunnel())
    link.connect()
    sent: list[dict[int, bytes]] = [{}, {}]
    count = 0
    for what, *more in steps:
        numbers = [int(str(each)) for each in more]
        if what == "send":
            side, channel, size = numbers
            size = min(size, link.ends[side].room(channel))
            count += 1
            content = bytes([count % 256]) * size
            if size:
                link.ends[side].send(DATA, channel, content)
                sent[side][channel] = sent[side].get(channel, b"") + content
        elif what == "move":
            link.move(*numbers)
        elif what == "use":
            link.use(numbers[0])
        else:
            link.connect()
    for side in (0, 1):
        for channel in sent[side]:
            link.ends[side].send(END, channel)
    for _ in range(500):
        for side in (0, 1):
            link.move(side)
            link.use(side)
        if all(end.settled and not end.unsent for end in link.ends):
            break
    assert [link.got[1], link.got[0]] == sent
    assert [link.ended[1], link.ended[0]] == [set(sent[0]), set(sent[1])]
    assert all(end.settled for end in link.ends)


def test_a_reader_that_uses_nothing_stops_the_writer() -> None:
    link = Link(Tunnel(), Tunnel())
    link.connect()
    one = link.ends[0]
    for side in (0, 1, 0, 1):
        link.move(side)
    sent = 0
    while one.room(1):
        one.send(DATA, 1, bytes(min(PIECE, one.room(1))))
        sent += PIECE
        link.move(0)
        link.move(1)
    assert sent == WINDOW
    assert one.settled, "what the other end has is not kept here"
    link.use(1)
    link.move(1)
    assert one.room(1) == WINDOW


def test_an_end_that_breaks_the_rules_is_found() -> None:
    link = Link(Tunnel(), Tunnel())
    link.connect()
    for side in (0, 1, 0, 1):
        link.move(side)
    one, other = link.ends
    other.room(1)
    other._room[1] = 2 * WINDOW  # it believes that it may
    with pytest.raises(Broken, match="more bytes arrive than the window"):
        for _ in range(WINDOW // PIECE + 1):
            other.send(DATA, 1, bytes(PIECE))
            link.move(1)
    with pytest.raises(Broken, match="too large"):
        list(one.receive(b"\x02" + bytes(4) + b"\xff\xff\xff\x7f"))
    one.send(OPEN, 16, b"")
    link.move(0)
    other.connect()
    with pytest.raises(Broken, match="has lost a part of this tunnel"):
        list(Tunnel().receive(other.take()))  # it has lost what it knew
    fresh = Tunnel()
    fresh.greeted = True
    fresh.send(OPEN, 16, b"")
    with pytest.raises(Broken, match="has not greeted"):
        list(other.receive(fresh.take()))


def greeted() -> Tunnel:
    """Return an end whose other end has greeted."""
    end = Tunnel()
    end.connect()
    list(end.receive(_frame(HELLO, 0, COUNT.pack(0))))
    return end


def test_an_end_that_confirms_nothing_takes_bounded_memory() -> None:
    end = greeted()
    with pytest.raises(Broken, match="confirms nothing"):
        for _ in range(100_000):
            end.send(DATA, STANDARD, bytes(PIECE))
            list(end.receive(_frame(USED, STANDARD, NUMBER.pack(PIECE))))
            assert sum(map(len, end._kept)) < 80 * WINDOW
    with pytest.raises(Broken, match="used more bytes of a channel than it got"):
        list(end.receive(_frame(USED, STANDARD, NUMBER.pack(WINDOW))))


def test_pieces_without_bytes_are_dropped() -> None:
    end = greeted()
    assert list(end.receive(_frame(DATA, STANDARD, b"") * 100)) == []


def test_data_of_channels_that_are_not_open_takes_no_memory_of_a_relay() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        relay = Relay(theirs, 0, False, None)
        relay._tunnel.connect()
        frames = b"".join(_frame(DATA, channel, b"x") for channel in range(100, 1_100))
        for kind, channel, content in relay._tunnel.receive(_frame(HELLO, 0, COUNT.pack(0)) + frames):
            relay._handle(kind, channel, content)
        assert not relay._tunnel._allowed and not relay._tunnel._used


def test_readers_that_take_nothing_slow_a_tunnel_down_before_it_takes_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The 100 channels of a tunnel may have 100 MiB on their way; its relay holds a few MiB of them, and goes on."""
    monkeypatch.setattr(relay_module, "PATIENCE", 0.0)
    monkeypatch.setattr(os, "_exit", sys.exit)  # the relay runs in a thread
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    relay, client, pipes = Relay(theirs, 0, False, None), Tunnel(), [os.pipe() for _ in range(100)]
    for channel, (_, end) in enumerate(pipes, CONNECTIONS):
        os.set_blocking(end, False)
        relay._inputs[channel] = Input(end)
    relay._connect(its, b"client")
    client.connect()
    list(client.receive(_frame(HELLO, 0, COUNT.pack(0))))
    for channel in range(CONNECTIONS, CONNECTIONS + 100):
        while room := client.room(channel):
            client.send(DATA, channel, bytes(min(PIECE, room)))
    sending = threading.Thread(target=lambda: [link.sendall(client.take()) for _ in iter(lambda: client.unsent, False)])
    running = threading.Thread(target=relay.run, daemon=True)

    def held() -> int:
        return sum(len(target.pending) for target in relay._inputs.values())

    with control, link:
        running.start()
        sending.start()
        until(lambda: held() >= MOST)
        time.sleep(0.5)
        assert sending.is_alive() and held() < 2 * MOST
        readers = [threading.Thread(target=_read_all, args=(end, WINDOW)) for end, _ in pipes]
        for reader in readers:
            reader.start()
        for reader in (*readers, sending):
            reader.join(60)
            assert not reader.is_alive()
        link.shutdown(socket.SHUT_RDWR)
        running.join(60)
        assert not running.is_alive()


def _read_all(fd: int, size: int) -> None:
    while size:
        size -= len(os.read(fd, size))


def test_a_relay_without_a_client_ends_although_output_was_not_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    os.write(writer, b"more than fits the window")
    ends = Ends(-1, -1)
    ends.outputs[STANDARD] = (reader, -1)
    with ours, theirs:
        relay = Relay(theirs, 1, True, ends)
        relay._ended = (0, "")
        relay._away_since = time.monotonic() - PATIENCE - 1
        relay._keep_time()
        assert relay._dumping, "it reads the rest, which nothing waits for"
    os.close(reader)
    os.close(writer)
