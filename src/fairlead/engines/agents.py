"""The hub: which agents are connected, what they are told, and what they say.

From the top: what is kept of a node, the hub as an engine, a connection from its greeting to its end, silence, logs.
All of it is for one asyncio loop. It decides nothing: that is for the core, which gets what is said as commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count as numbers
from time import monotonic

import msgspec

from fairlead.core.commands import Accepted, AddNode, AnyCommand, MoveNode, Rejected, Report
from fairlead.core.effects import ForNode, standing_effects
from fairlead.core.errors import Refused
from fairlead.core.ranges import Ranges, check_flat, difference, indices
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from fairlead.engines.base import Busy, Closed, Connection, Desk, Ended, Log, Peer, Secrets
from fairlead.engines.orders import Booked, Orders, booked, node_of, stops_of
from fairlead.wire import agent as wire
from fairlead.wire.agent import Tasks, decode_from_agent, encode

GREETING_TIME = 10.0
"""Seconds that a connection has to greet."""
BUSY_PAUSE = 0.02
WATCH_PAUSE = 0.5
MOST_UNSENT = 10_000
"""Messages. An agent that does not read them is cut off; it learns all of it when it is back."""
BAD, AGAIN = 1008, 1012
"""Codes of closing: broke the rules; come again in a moment."""

Block = tuple[str, int, str, int]
"""Job, number, stage, attempt."""


class Seen(msgspec.Struct):
    """What is known of a node in this reign, connected or not."""

    heard: float
    """When it was heard last, by `time.monotonic`."""
    address: str = ""
    local: bool = False
    lost: bool = False


class Attached:
    """A connection that speaks for a node."""

    def __init__(self, node: str, connection: Connection) -> None:
        self.node = node
        self.connection = connection
        self.open = False
        """Whether it has been told what stands: before that, only stops are kept for it."""
        self.early: list[wire.Stop] = []
        self.running: dict[Block, Ranges] = {}
        """What the state knows to run there, from its reports."""
        self.outbox: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_UNSENT)
        self.readers: dict[int, asyncio.Queue[wire.LogPart]] = {}

    def put(self, message: wire.FromServer) -> None:
        try:
            self.outbox.put_nowait(encode(message))
        except asyncio.QueueFull:
            self.cut()

    def cut(self) -> None:
        """End it when what is being sent has been."""
        while not self.outbox.empty():
            self.outbox.get_nowait()
        self.outbox.put_nowait(None)


class Reign:
    """A partition under one writer."""

    def __init__(self, desk: Desk, secrets: Secrets) -> None:
        self.desk = desk
        self.nodes: dict[str, Seen] = {}
        self.attached: dict[str, Attached] = {}
        self.orders = Orders(desk.epoch, self._address, secrets)
        self.ready_since: float | None = None
        """When readiness was noticed: the clocks of silence start there."""

    def _address(self, node: str) -> str:
        seen = self.nodes.get(node)
        return seen.address if seen is not None else ""


class Agents:
    """The engine that runs tasks through our own agents."""

    def __init__(
        self,
        log: Log = lambda event, fields: None,
        secrets: Secrets = lambda user, names: {},
        ended: Callable[[Ended], None] | None = None,
    ) -> None:
        """`ended` hears of every task that ended, after that is durable."""
        self._log = log
        self._secrets = secrets
        self._ended = ended
        self._reigns: dict[str, Reign] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._requests = numbers(1)

    # -- as an engine --------------------------------------------------------------------------------------------

    def begin(self, partition: str, desk: Desk) -> None:
        self.end(partition)
        reign = self._reigns[partition] = Reign(desk, self._secrets)
        # Who is known and does not come back is lost too, after the same time.
        for node in _own_nodes(desk.partition):
            reign.nodes[node] = Seen(monotonic())
        self._watchers[partition] = asyncio.create_task(self._watch(partition, reign))

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        reign = self._reigns.get(partition)
        if reign is None:
            return
        gangs: dict[int, wire.Gang] = {}
        for message in messages:
            attached = reign.attached.get(message.node)
            if attached is None:
                continue  # it is told when it is back
            if attached.open:
                attached.put(reign.orders.work(reign.desk.partition, message, gangs))
            else:
                attached.early += stops_of(message)

    def end(self, partition: str) -> None:
        reign = self._reigns.pop(partition, None)
        watcher = self._watchers.pop(partition, None)
        if watcher is not None:
            watcher.cancel()
        if reign is not None:
            for attached in reign.attached.values():
                attached.cut()

    # -- a connection --------------------------------------------------------------------------------------------

    async def serve(self, partition: str, connection: Connection, peer: Peer) -> None:
        """Speak with an agent until it or its partition is gone. Always closes the connection."""
        code, reason = AGAIN, "come again"
        try:
            await self._serve(partition, connection, peer)
        except Closed:
            pass
        except (Refused, msgspec.DecodeError, msgspec.ValidationError, TimeoutError) as problem:
            code, reason = BAD, str(problem) or "the greeting took too long"
            self._log("agent refused", {"partition": partition, "problem": reason})
            with suppress(Closed):
                await connection.send(encode(wire.Refusal(reason)))
        finally:
            await connection.close(code, reason.encode()[:120].decode(errors="ignore"))

    async def _serve(self, partition: str, connection: Connection, peer: Peer) -> None:
        async with asyncio.timeout(GREETING_TIME):
            hello = decode_from_agent(await connection.recv())
        if not isinstance(hello, wire.Hello):
            raise Refused("greeting", "an agent has to greet first; start it with `fairlead agent --join`")
        reign = self._reigns.get(partition)
        if reign is None:
            raise Closed
        name = self._check(hello, peer)
        attached = Attached(name, connection)
        before = reign.attached.get(name)
        if before is not None:
            before.cut()  # an agent that connects again has given up its last connection
        reign.attached[name] = attached
        sender = asyncio.create_task(self._send(attached))
        try:
            await self._join(reign, attached, hello)
            self._log("agent joined", {"partition": partition, "node": name, "notes": list(hello.notes)})
            await self._listen(partition, reign, attached)
        finally:
            sender.cancel()
            if reign.attached.get(name) is attached:
                del reign.attached[name]
                self._log("agent gone", {"partition": partition, "node": name})

    def _check(self, hello: wire.Hello, peer: Peer) -> str:
        if hello.version != wire.VERSION:
            raise Refused("version", f"the agent speaks version {hello.version}, the server {wire.VERSION}; update one")
        name, _ = node_of(hello)
        if peer.node and peer.node != name:
            raise Refused("node", f"this token is for node {peer.node}, not for {name}; use one for {name}")
        return name

    async def _join(self, reign: Reign, attached: Attached, hello: wire.Hello) -> None:
        """The node is there again. First the state hears what runs, then the agent what stands."""
        name, spec = node_of(hello)
        seen = reign.nodes.setdefault(name, Seen(monotonic()))
        seen.heard, seen.address, seen.local = monotonic(), hello.address, hello.local
        commands: list[AnyCommand] = [AddNode(name=name, spec=spec, operator=True)]
        commands += [_command(name, wire.Report(tasks, "running")) for tasks in _sound(hello.running)]
        for command, answer in zip(commands, await self._offer(reign, commands), strict=True):
            if isinstance(answer, Rejected) and isinstance(command, AddNode):
                raise Refused(answer.field, answer.problem, answer.code)
        seen.lost = False
        known: dict[Block, Ranges] = {}
        for tasks in _sound((*hello.running, *hello.ended)):
            _add(known, tasks)

        def look(p: Partition) -> tuple[PartitionSettings, list[Booked], wire.Work]:
            join = p.nodes.find(name)
            standing = standing_effects(p, join) if join is not None else []
            message = standing[0] if standing else ForNode(name)
            return p.settings, booked(p, name), reign.orders.work(p, message, {}, standing=True)

        settings, here, work = await reign.desk.read(look)
        attached.put(_welcome(reign.desk.epoch, settings, hello.local))
        early = tuple(attached.early)
        attached.put(msgspec.structs.replace(work, stops=(*work.stops, *early)) if early else work)
        attached.open = True
        missing: list[AnyCommand] = []
        for each in here:
            if each.state == "running":
                _add(attached.running, each.tasks)
                gone = difference(
                    each.tasks.indices, known.get(_block(each.tasks), Ranges()).overlap(each.tasks.indices)
                )
                if gone:
                    missing.append(self._lose(name, each.tasks, gone))
                    _drop(attached.running, each.tasks, gone)
        await self._offer(reign, missing)

    async def _listen(self, partition: str, reign: Reign, attached: Attached) -> None:
        waiting: set[asyncio.Task[None]] = set()
        try:
            while reign.attached.get(attached.node) is attached:
                message = decode_from_agent(await attached.connection.recv())
                reign.nodes[attached.node].heard = monotonic()
                match message:
                    case wire.Reports():
                        slots = await self._take(reign, [_command(attached.node, each) for each in message.reports])
                        task = asyncio.create_task(self._confirm(partition, attached, message, slots))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                    case wire.Beat():
                        attached.put(wire.Beaten(message.number))
                        await self._compare(reign, attached, message)
                    case wire.LogPart():
                        reader = attached.readers.get(message.request)
                        if reader is not None:
                            reader.put_nowait(message)
                    case wire.Hello():
                        raise Refused("greeting", "an agent greets once; connect again for another")
        finally:
            for reader in attached.readers.values():
                reader.put_nowait(wire.LogPart(0, 0, b"", True, f"node {attached.node} is not connected any more"))
            for task in waiting:
                task.cancel()

    async def _send(self, attached: Attached) -> None:
        """All that is sent goes this way, in order. `None` is the end."""
        with suppress(Closed):
            while (data := await attached.outbox.get()) is not None:
                await attached.connection.send(data)
        await attached.connection.close(AGAIN, "come again")

    async def _confirm(
        self, partition: str, attached: Attached, batch: wire.Reports, slots: list[asyncio.Future[object]]
    ) -> None:
        """Wait until a batch is durable, and say so. Without an answer the agent sends it again elsewhere or later."""
        answers = await asyncio.gather(*slots)
        for each, answer in zip(batch.reports, answers, strict=True):
            if isinstance(answer, Rejected):
                self._log("report refused", {"node": attached.node, "problem": str(answer)})
                continue
            if not isinstance(answer, Accepted):
                attached.cut()
                return
            if each.state == "running":
                _add(attached.running, each.tasks)
            else:
                _drop(attached.running, each.tasks, each.tasks.indices)
                if self._ended is not None and not answer.note:
                    for ended in _ends(partition, attached.node, each):
                        self._ended(ended)
        attached.put(wire.Confirmed(batch.number))

    async def _compare(self, reign: Reign, attached: Attached, beat: wire.Beat) -> None:
        """What the state has running and the agent does not know is lost.

        No race is in it: the agent lists a task until its end is confirmed, which is after it went from `running` here.
        """
        known: dict[Block, Ranges] = {}
        for tasks in _sound(beat.known):
            _add(known, tasks)
        missing: list[AnyCommand] = []
        for block, running in list(attached.running.items()):
            gone = difference(running.flat(), known.get(block, Ranges()).overlap(running.flat()))
            if gone:
                tasks = Tasks(*block, gone)
                _drop(attached.running, tasks, gone)
                missing.append(self._lose(attached.node, tasks, gone))
        await self._take(reign, missing)

    def _lose(self, node: str, tasks: Tasks, gone: tuple[int, ...]) -> Report:
        self._log("tasks missing", {"node": node, "job": tasks.job, "stage": tasks.stage, "indices": list(gone)})
        lost = wire.Report(msgspec.structs.replace(tasks, indices=gone), "lost", reason=f"node {node} does not have it")
        return _command(node, lost)

    # -- commands ------------------------------------------------------------------------------------------------

    async def _take(self, reign: Reign, commands: Iterable[AnyCommand]) -> list[asyncio.Future[object]]:
        """Have commands taken, in order, however long there is no place for them: the agent's next ones wait too."""
        slots: list[asyncio.Future[object]] = []
        for command in commands:
            while True:
                try:
                    slots.append(asyncio.ensure_future(reign.desk.offer(command)))
                    break
                except Busy:
                    await asyncio.sleep(BUSY_PAUSE)
        return slots

    async def _offer(self, reign: Reign, commands: Sequence[AnyCommand]) -> list[object]:
        answers = await asyncio.gather(*await self._take(reign, commands))
        if not all(isinstance(answer, Accepted | Rejected) for answer in answers):
            raise Closed  # the writer ended
        return answers

    # -- silence -------------------------------------------------------------------------------------------------

    async def _watch(self, partition: str, reign: Reign) -> None:
        """Who is silent for longer than its lease, and a heartbeat of grace, is lost. Before ready nobody is."""
        while True:
            await asyncio.sleep(WATCH_PAUSE)
            ready, settings, own = await reign.desk.read(lambda p: (p.reign.ready, p.settings, _own_nodes(p)))
            if not ready:
                continue
            if reign.ready_since is None:
                reign.ready_since = monotonic()
            for node in own:
                seen = reign.nodes.setdefault(node, Seen(monotonic()))
                late = max(seen.heard, reign.ready_since) + (settings.lease + settings.heartbeat) / SECOND
                if not seen.lost and monotonic() > late:
                    seen.lost = True
                    self._log("agent silent", {"partition": partition, "node": node})
                    attached = reign.attached.get(node)
                    if attached is not None:
                        attached.cut()
                    await self._take(reign, [MoveNode(name=node, action="lose", operator=True)])

    # -- for people ----------------------------------------------------------------------------------------------

    def connected(self, partition: str) -> dict[str, float]:
        """The nodes whose agents are connected → how many seconds ago each was heard."""
        reign = self._reigns.get(partition)
        if reign is None:
            return {}
        return {name: monotonic() - reign.nodes[name].heard for name in sorted(reign.attached)}

    async def log(self, partition: str, node: str, asked: wire.LogRequest) -> AsyncIterator[wire.LogPart]:
        """A task's log from its node. The last part says so, and why if something is wrong."""
        reign = self._reigns.get(partition)
        attached = reign.attached.get(node) if reign is not None else None
        if attached is None or not attached.open:
            yield wire.LogPart(0, 0, b"", True, f"node {node} is not connected; its logs are there when it is back")
            return
        request = next(self._requests)
        reader = attached.readers[request] = asyncio.Queue[wire.LogPart]()
        attached.put(msgspec.structs.replace(asked, request=request))
        last = False
        try:
            while not last:
                part = await reader.get()
                last = part.last
                yield part
                if not last:
                    attached.put(wire.LogMore(request))
        finally:
            del attached.readers[request]
            if not last:
                attached.put(wire.LogCancel(request))


def _own_nodes(p: Partition) -> list[str]:
    """Nodes of ours that are not lost."""
    nodes = p.nodes
    return [
        nodes.name[row]
        for _, row in sorted(nodes.rows.items())
        if not nodes.manager[row] and nodes.state[row] != "lost"
    ]


def _welcome(epoch: int, settings: PartitionSettings, local: bool) -> wire.Welcome:
    lease = settings.lease if settings.fence == "lease" and not local else 0
    return wire.Welcome(epoch, settings.heartbeat, lease, settings.preempt_grace)


def _command(node: str, report: wire.Report) -> Report:
    tasks = report.tasks
    return Report(
        node=node,
        job=tasks.job,
        stage=tasks.stage,
        indices=tasks.indices,
        attempt=tasks.attempt,
        state=report.state,
        exit_code=report.exit_code,
        reason=report.reason,
        number=tasks.number,
        ran=sum(report.ran) // len(report.ran) if report.ran else 0,
        operator=True,
    )


def _ends(partition: str, node: str, report: wire.Report) -> Iterable[Ended]:
    tasks = report.tasks
    for at, index in enumerate(indices(tasks.indices)):
        yield Ended(
            partition,
            node,
            tasks.job,
            tasks.number,
            tasks.stage,
            index,
            tasks.attempt,
            report.state,
            report.exit_code,
            report.signal,
            *(each[at] if at < len(each) else 0 for each in (report.ran, report.cpu, report.memory)),
        )


def _sound(listed: Iterable[Tasks]) -> list[Tasks]:
    """What an agent says, if it can be: it is not ours to trust."""
    found = list(listed)
    for tasks in found:
        check_flat(tasks.indices, "indices")
    return found


def _block(tasks: Tasks) -> Block:
    return (tasks.job, tasks.number, tasks.stage, tasks.attempt)


def _add(known: dict[Block, Ranges], tasks: Tasks) -> None:
    ranges = known.setdefault(_block(tasks), Ranges())
    ranges.add(difference(tasks.indices, ranges.overlap(tasks.indices)))


def _drop(known: dict[Block, Ranges], tasks: Tasks, gone: tuple[int, ...]) -> None:
    ranges = known.get(_block(tasks))
    if ranges is not None:
        ranges.remove(ranges.overlap(gone))
        if not ranges:
            del known[_block(tasks)]
