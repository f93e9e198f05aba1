"""The hub: connections of agents, orders to them and reports from them.

The hub runs in one asyncio loop. It decides nothing: it passes messages of agents to the core as commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from itertools import count as numbers
from secrets import token_bytes, token_hex
from time import monotonic
from typing import Any

import msgspec

from fairlead.core.commands import Accepted, AddNode, Command, DisconnectNodes, MoveNode, Rejected, Report
from fairlead.core.effects import ForNode, outstanding_effects
from fairlead.core.errors import Refused
from fairlead.core.ranges import check_flat
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from fairlead.engines import convert
from fairlead.engines.agent_connections import Attached, Blocks, LedPartition, Seen
from fairlead.engines.engine import (
    Away,
    Busy,
    Closed,
    Connection,
    Credentials,
    Ended,
    Log,
    PartitionHandle,
    Peer,
    Secrets,
)
from fairlead.engines.launches import stops_of, tasks_of
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import Tasks, decode_from_agent, encode
from fairlead.wire.unserved import Unserved

GREETING_TIME = 10.0
"""Seconds that a new connection has to authenticate its node and send `Hello`."""
REFUSAL_TIME = 5.0
"""Seconds that a connection has to accept the reason before it is closed."""
RENEWAL_TIME = 2.0
"""Seconds that an agent has to send a new key after its credential expired, for example by a clock jump."""
MAX_REASON = 200
"""Largest number of characters of the reason for which a node is drained."""
TUNNEL_TIME = 15.0
"""Seconds that an agent has to open a connection for a tunnel."""
TUNNELS_FROM = 3
"""The version of messages from which on agents open tunnels."""
BUSY_PAUSE = 0.02
WATCH_PAUSE = 0.5
MARGIN = 1.5
"""Seconds after the end of a lease in which a keeper ends the tasks of a suspended spawner, and their processes die."""
BAD, AGAIN = 1008, 1012
"""Close codes: protocol violation; reconnect in a moment."""
AT_ONCE = 200
"""Commands of one message that are offered without a pause for others."""
MAX_NOTES, MAX_NOTE = 20, 300
"""Notes of an agent that are logged, and their characters."""
MAX_MEETINGS = 1_000
"""Ports of gangs that an agent names when it joins."""
MOST_LOGGED = 300
"""Characters of a refused report in the log."""
PASSING = frozenset(("conflict", "unavailable"))
"""Codes of temporary refusals: another agent has the node for now, or a disk is full."""


def _decoded(data: bytes) -> wire.FromAgent:
    """Decode a message of an agent that has proved its key."""
    if len(data) > wire.MAX_LATER_BYTES:
        raise Refused("message", f"it has {len(data)} bytes; at most 4 MiB are allowed")
    message: wire.FromAgent = decode_from_agent(data)
    return message


class Agents:
    """The engine that runs tasks through our own agents."""

    def __init__(
        self,
        credentials: Credentials,
        log: Log = lambda event, fields: None,
        secrets: Secrets = lambda user, names: {},
        ended: Callable[[list[Ended]], None] = lambda tasks: None,
        gang_seed: bytes = b"",
        lock: str = "",
        steady: Callable[[], float] = monotonic,
        collected: Callable[[str, str, Tasks], None] = lambda partition, node, tasks: None,
    ) -> None:
        """Take the callbacks. `ended` is called with all ended tasks, after their ends are durable.

        A task that an agent reports again, for example after a restart of the server, is marked as stale.

        `collected` is called with partition, node and tasks, when the node says that it has their result files. Their
        end need not be durable yet.

        Keys of gangs are derived from `gang_seed`. They stay the same after a restart only if the seed does. `lock` is
        a file that is locked while this process runs, for agents on the same machine.
        """
        self._credentials = credentials
        self._log = log
        self._secrets = secrets
        self._gang_seed = gang_seed or token_bytes(32)
        self._ended = ended
        self._collected = collected
        self._lock = lock
        self._steady = steady
        self._led: dict[str, LedPartition] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._requests = numbers(1)
        self._tickets: dict[str, asyncio.Future[Connection]] = {}
        """Ticket of a tunnel → where the agent's connection for it is awaited."""
        self._connections = numbers(1)

    # -- engine interface ----------------------------------------------------------------------------------------

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        self.end(partition)
        led = self._led[partition] = LedPartition(handle, self._secrets, self._gang_seed)
        # A known node that does not reconnect is lost after the same time as a connected one.
        for node in convert.present_nodes(handle.partition):
            led.nodes[node] = Seen(self._steady())
        # Nodes that are lost too, because an operator may enable one before its agent is back.
        for node in convert.own_nodes(handle.partition):
            self._part(partition, led, node)
        self._watchers[partition] = asyncio.create_task(self._watch(partition, led))

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        led = self._led.get(partition)
        if led is None:
            return
        gangs: dict[int, wire.Gang] = {}
        for message in messages:
            attached = led.attached.get(message.node)
            if attached is None:
                self._refuse(led, message)
            elif attached.open:
                attached.put(led.orders.work(led.handle.partition, message, gangs))
            else:
                attached.early += stops_of(led.handle.partition, message)

    def _refuse(self, led: LedPartition, message: ForNode) -> None:
        """Refuse launches for an agent that is not connected. Stops are sent when it reconnects.

        While the partition is not ready, launches are not refused, because an earlier server may have sent them.
        """
        if not led.handle.partition.readiness.ready:
            return
        reason = f"node {message.node} is not connected"
        for effect in message.launches:
            report = wire.Report(tasks_of(effect), "refused", reason=reason)
            with suppress(Busy):  # else the agent gets the launch when it reconnects, or the launch times out
                led.handle.offer(convert.command_of(message.node, report))

    def end(self, partition: str) -> None:
        led = self._led.pop(partition, None)
        watcher = self._watchers.pop(partition, None)
        if watcher is not None:
            watcher.cancel()
        if led is not None:
            for attached in led.attached.values():
                attached.cut()

    # -- a connection --------------------------------------------------------------------------------------------

    async def serve(self, partition: str, connection: Connection) -> None:
        """Serve an agent until the agent or its partition is gone. Always closes the connection."""
        await self._run(partition, connection, self._serve(partition, connection))

    async def dismiss(self, partition: str, epoch: int, connection: Connection) -> None:
        """Stop all tasks of an agent of a removed partition, then refuse the agent. Always closes the connection.

        The orders to stop have the number `epoch`, which is above all epochs of the partition.
        """
        await self._run(partition, connection, self._dismiss(partition, epoch, connection))

    async def _run(self, partition: str, connection: Connection, dialogue: Coroutine[Any, Any, None]) -> None:
        code, reason = AGAIN, "connect again"
        try:
            await dialogue
        except Closed:
            pass
        except (Refused, msgspec.DecodeError, msgspec.ValidationError, TimeoutError) as problem:
            code, reason = BAD, str(problem) or "the greeting took too long"
            final = isinstance(problem, Refused) and problem.code not in PASSING
            self._log("agent refused", {"partition": partition, "problem": reason})
            with suppress(Closed, TimeoutError):
                async with asyncio.timeout(REFUSAL_TIME):
                    await connection.send(encode(wire.Refusal(reason, final)))
        finally:
            await connection.close(code, reason.encode()[:120].decode(errors="ignore"))

    async def _greeting(self, partition: str, connection: Connection) -> tuple[Peer, wire.Hello]:
        async with asyncio.timeout(GREETING_TIME):
            knock = decode_from_agent(await connection.recv())
            if not isinstance(knock, wire.Knock):
                raise Refused("greeting", "an agent has to knock first; start it with `fairlead agent --join`")
            convert.check_knock(knock)
            exchange, challenge = self._credentials.challenge(partition, knock)
            await connection.send(encode(challenge))
            proof = decode_from_agent(await connection.recv())
            if not isinstance(proof, wire.Proof):
                raise Refused("greeting", "an agent has to sign the challenge; start it with `fairlead agent --join`")
            peer = await self._credentials.admit(exchange, proof)
            connection.trust()
            hello = _decoded(await connection.recv())
        if not isinstance(hello, wire.Hello):
            raise Refused("greeting", "an agent has to greet after its proof; update it")
        convert.check_greeting(hello, peer)
        return peer, hello

    async def _dismiss(self, partition: str, epoch: int, connection: Connection) -> None:
        """Stop the agent's tasks and wait until it has reported the end of each."""
        _, hello = await self._greeting(partition, connection)
        await connection.send(encode(convert.welcome(epoch, PartitionSettings(), hello, self._lock)))
        stops = tuple(wire.Stop(tasks, "kill") for tasks in hello.running)
        await connection.send(encode(wire.Work(epoch, stops=stops, standing=True)))
        if stops:
            self._log("agent dismissed", {"partition": partition, "node": hello.node})
        left = Blocks((*hello.running, *hello.ended))
        while left:
            message = decode_from_agent(await connection.recv())
            if isinstance(message, wire.Reports):
                begun = [report.tasks for report in message.reports if report.state == "running"]
                for report in message.reports:
                    check_flat(report.tasks.indices, "indices")
                    (left.add if report.state == "running" else left.drop)(report.tasks)
                stops = tuple(wire.Stop(tasks, "kill") for tasks in begun)
                await connection.send(encode(wire.Work(epoch, stops=stops, confirmed=(message.number,))))
            elif isinstance(message, wire.Beat):
                await connection.send(encode(wire.Beaten(message.number)))
        problem = (
            f"partition {partition} was removed, and its tasks have ended; join another one with --partition, or start "
            "the agent again when the partition is back"
        )
        await connection.send(encode(wire.Refusal(problem, final=True)))

    async def _serve(self, partition: str, connection: Connection) -> None:
        number = next(self._connections)
        peer, hello = await self._greeting(partition, connection)
        led = self._led.get(partition)
        if led is None:
            raise Closed
        name = peer.node
        before = led.attached.get(name)
        self._check_instance(led, before, peer)
        seen = led.nodes.setdefault(name, Seen(self._steady()))
        if number < seen.connection:
            raise Closed  # the agent has abandoned this slow greeting, which lacks newer tasks
        seen.connection = number
        attached = Attached(peer, connection)
        attached.pool = hello.pool
        if before is not None:
            before.cut()  # an agent that reconnects has abandoned its last connection
        led.attached[name] = attached
        sender = asyncio.create_task(self._send(attached))
        try:
            if peer.instance != peer.before:
                await self._credentials.settle(peer)
            await self._join(led, attached, hello)
            notes = [note[:MAX_NOTE] for note in hello.notes[:MAX_NOTES]]
            self._log("agent joined", {"partition": partition, "node": name, "notes": notes})
            await self._listen(partition, led, attached)
        finally:
            sender.cancel()
            if led.attached.get(name) is attached:
                del led.attached[name]
                self._log("agent gone", {"partition": partition, "node": name})
                self._part(partition, led, name)

    def _part(self, partition: str, led: LedPartition, node: str) -> None:
        """Report to the core that the agent of a node is disconnected, so that the node gets no new work."""
        led.parted[node] = None
        if led.parting is None and self._led.get(partition) is led:
            led.parting = asyncio.create_task(self._tell_parted(led))

    async def _tell_parted(self, led: LedPartition) -> None:
        # No await between reading the connections and offering the command: an agent that connects later is added
        # later.
        while nodes := tuple(node for node in led.parted if node not in led.attached):
            try:
                slot = led.handle.offer(DisconnectNodes(names=nodes, operator=True))
            except Busy:
                await asyncio.sleep(BUSY_PAUSE)
                continue
            led.parted = {}
            await slot
        led.parted, led.parting = {}, None

    def _check_instance(self, led: LedPartition, before: Attached | None, peer: Peer) -> None:
        """Refuse a second agent for a node until the first one is lost.

        Two agents with one identity would each seem to have lost the tasks of the other, which keep running until the
        lease ends.
        """
        seen = led.nodes.get(peer.node)
        first = "" if seen is None or seen.lost else seen.instance or peer.before
        if before is not None:
            first = before.peer.instance
        if first not in ("", peer.instance):
            ago = "" if seen is None else f", last seen {self._steady() - seen.heard:.0f} s ago"
            raise Refused(
                "node",
                f"another agent has the identity of node {peer.node}{ago}: the directory of one is a copy, or the "
                "machine was restarted; give this agent a name and a directory of its own, or wait until the other "
                "agent is lost",
                "conflict",
            )

    async def _join(self, led: LedPartition, attached: Attached, hello: wire.Hello) -> None:
        """Add the node: first report its running tasks to the state, then send the standing orders to the agent."""
        name, spec = convert.node_of(hello)
        seen = led.nodes.setdefault(name, Seen(self._steady()))
        seen.heard, seen.address, seen.instance = self._steady(), hello.address, attached.peer.instance
        seen.speaks = hello.speaks
        for meeting in hello.meetings[:MAX_MEETINGS]:
            led.orders.meet(meeting)
        greeted = Blocks((*hello.running, *hello.ended))
        times = (*hello.run_times, *(0 for _ in hello.running))
        running = (
            convert.command_of(name, wire.Report(tasks, "running", ran=(ran,)), confined=bool(attached.peer.users))
            for tasks, ran in zip(hello.running, times, strict=False)
        )
        added, *answers = await self._offer(led, chain((AddNode(name=name, spec=spec, operator=True),), running))
        if isinstance(added, Rejected):
            raise Refused(added.field, added.problem, added.code)
        self._check_epoch(led, hello)
        if any(isinstance(answer, Rejected) and answer.code == "alarm" for answer in answers):
            await self._set_aside(led, name)

        def look(partition: Partition) -> tuple[PartitionSettings, list[Tasks], wire.Work]:
            if not led.handle.leads:
                raise Closed  # the orders may not be in the journal
            node_id = partition.nodes.find(name)
            if node_id is None or partition.nodes.state[partition.nodes.rows[node_id]] == "lost":
                raise Closed  # the node was removed in the cycle that added it: the agent reconnects
            standing = outstanding_effects(partition, node_id)
            message = standing[0] if standing else ForNode(name)
            return (
                partition.settings,
                convert.running_on(partition, name),
                led.orders.work(partition, message, {}, standing=True),
            )

        settings, known, work = await led.handle.read(look)
        seen.lost = False
        attached.put(convert.welcome(led.handle.epoch, settings, hello, self._lock))
        seen.tell_lease(convert.lease_of(settings))
        early = tuple(attached.early)
        attached.put(msgspec.structs.replace(work, stops=(*work.stops, *early)))
        attached.open = True
        attached.running = Blocks(known)
        await self._offer(led, self._missing(attached, greeted))
        await self._send_waiting(led)

    async def _send_waiting(self, led: LedPartition) -> None:
        """Send the launches of gangs that waited for the ports of their gang. Those that still have none wait again."""
        for name in led.orders.take_waiting():
            attached = led.attached.get(name)
            if attached is None or not attached.open:
                continue  # it gets all launches when it joins
            message = await led.handle.read(partial(_launches_for, led, name))
            if message is not None:
                attached.put(message)

    def _check_epoch(self, led: LedPartition, hello: wire.Hello) -> None:
        """Note a node that has seen a leader whose records are not in this journal."""
        handle = led.handle
        if hello.epoch > handle.epoch or hello.epoch in handle.skipped_epochs:
            led.ahead[hello.node] = None
            self._log("epoch not known", {"node": hello.node, "epoch": hello.epoch, "ours": handle.epoch})

    async def _set_aside(self, led: LedPartition | None, node: str) -> None:
        """Drain a node that runs tasks which the journal does not have, because they use its capacity."""
        if led is None:
            return
        led.ahead[node] = None
        await self._drain(led, node, "it runs tasks that are not in the journal")

    async def _drain(self, led: LedPartition, node: str, reason: str) -> None:
        for slot in await self._take(led, [MoveNode(name=node, action="drain", reason=reason, operator=True)]):
            await slot  # refused if the node drains already or is disabled

    async def _listen(self, partition: str, led: LedPartition, attached: Attached) -> None:
        waiting: set[asyncio.Task[None]] = set()
        try:
            while led.attached.get(attached.node) is attached and attached.refusal is None:
                message = _decoded(await attached.connection.recv())
                led.nodes[attached.node].heard = self._steady()
                confirming = await self._receive(partition, led, attached, message)
                if confirming is not None:
                    waiting.add(confirming)
                    confirming.add_done_callback(waiting.discard)
                    confirming.add_done_callback(attached.cut_if_failed)
        finally:
            for reader in attached.readers.values():
                reader.put_nowait(None)
            for task in waiting:
                task.cancel()

    async def _receive(
        self, partition: str, led: LedPartition, attached: Attached, message: wire.FromAgent
    ) -> asyncio.Task[None] | None:
        """Handle a message of an agent. Return the task that confirms reports, if it has some."""
        match message:
            case wire.Reports():
                for report in message.reports:
                    if report.results:
                        self._tell_collected(partition, attached, report.tasks)
                confined = bool(attached.peer.users)
                commands = [convert.command_of(attached.node, report, confined) for report in message.reports]
                slots = await self._take(led, commands)
                return asyncio.create_task(self._confirm(partition, attached, message, slots))
            case wire.Beat():
                seen, lease = led.nodes[attached.node], convert.lease_of(led.handle.partition.settings)
                seen.acknowledge_lease(message.lease)
                seen.tell_lease(lease)
                attached.put(wire.Beaten(message.number, lease))
                # There is no race: an agent lists a task until its end is confirmed, and by then the task has left
                # `running` here.
                await self._take(led, self._missing(attached, attached.running.among(message.known)))
            case wire.LogPart() | wire.OutputPart():
                reader = attached.readers.get(message.request)
                if reader is not None:
                    if reader.qsize() > wire.LOG_PARTS + 1:  # plus one for a final reason
                        raise Refused("log", "the agent sends more of a log than it may; update it")
                    reader.put_nowait(message)
            case wire.Staged():
                for tasks in message.tasks:
                    self._tell_collected(partition, attached, tasks)
            case wire.Meetings():
                for meeting in message.meetings:
                    led.orders.meet(meeting)
                await self._send_waiting(led)
            case wire.NewKey():
                await self._credentials.renew(attached.peer, message)
                self._log("node key renewed", {"partition": partition, "node": attached.node})
                attached.put(wire.Renewed())
            case wire.Hello() | wire.Knock() | wire.Proof():
                raise Refused("greeting", "an agent greets once per connection; connect again")
        return None

    def _tell_collected(self, partition: str, attached: Attached, tasks: Tasks) -> None:
        check_flat(tasks.indices, "indices")
        self._collected(partition, attached.node, tasks)

    async def _send(self, attached: Attached) -> None:
        with suppress(Closed):
            while messages := await attached.take():
                for message in messages:
                    await attached.connection.send(encode(message))
            if attached.refusal is not None:
                await attached.connection.send(encode(attached.refusal))
        await attached.connection.close(AGAIN, "connect again")

    async def _confirm(
        self, partition: str, attached: Attached, batch: wire.Reports, slots: list[asyncio.Future[object]]
    ) -> None:
        """Confirm a batch once it is durable. The agent sends an unconfirmed batch again, here or to another server."""
        ended: list[Ended] = []
        refused, count = "", 0
        try:
            for report, slot in zip(batch.reports, slots, strict=True):
                answer = await slot
                if isinstance(answer, Rejected):
                    refused, count = refused or str(answer)[:MOST_LOGGED], count + 1
                    if answer.code == "alarm" and report.state == "running":
                        await self._set_aside(self._led.get(partition), attached.node)
                    continue
                if not isinstance(answer, Accepted):
                    attached.cut()
                    return
                await self._count_failed_start(partition, attached, report)
                if report.state == "running":
                    attached.running.add(report.tasks)
                else:
                    attached.running.drop(report.tasks)
                    ended += convert.ends_of(partition, attached, report, stale=bool(answer.note))
        finally:
            if ended:
                self._ended(ended)
            if refused:
                self._log("report refused", {"node": attached.node, "times": count, "problem": refused})
        attached.put(wire.Confirmed(batch.number))

    async def _count_failed_start(self, partition: str, attached: Attached, report: wire.Report) -> None:
        """Drain a node that could start no task of several jobs in a row, so that it does not fail all that wait."""
        failed, tasks = attached.failed_starts, report.tasks
        if report.state != "failed" or any(report.ran):
            if report.state == "running" or any(report.ran):
                failed.clear()
            return
        led = self._led.get(partition)
        if led is None:
            return
        job = await led.handle.read(lambda state: state.jobs.get(tasks.job))
        if job is None:
            return
        failed.add(tasks.number, job.spec.user)
        if failed.is_nodes_fault:
            reason = f"it could start no task of {failed.jobs} jobs in a row: {report.reason}"[:MAX_REASON]
            failed.clear()
            self._log("node drained", {"partition": partition, "node": attached.node, "problem": reason})
            await self._drain(led, attached.node, reason)

    def _missing(self, attached: Attached, listed: Blocks) -> list[Report]:
        """Return loss reports for tasks that run according to the state and that the agent has not listed."""
        reports: list[Report] = []
        for tasks in attached.running.without(listed):
            attached.running.drop(tasks)
            self._log("tasks missing", {"node": attached.node, "job": tasks.job, "stage": tasks.stage})
            reason = f"node {attached.node} does not have it"
            reports.append(convert.command_of(attached.node, wire.Report(tasks, "lost", reason=reason)))
        return reports

    # -- commands ------------------------------------------------------------------------------------------------

    async def _take(self, led: LedPartition, commands: Iterable[Command]) -> list[asyncio.Future[object]]:
        """Put commands into the inbox in order, and retry while it is full. Return where their answers arrive."""
        slots: list[asyncio.Future[object]] = []
        for at, command in enumerate(commands, 1):
            if at % AT_ONCE == 0:
                await asyncio.sleep(0)  # let others go on
            while True:
                try:
                    slots.append(asyncio.ensure_future(led.handle.offer(command)))
                    break
                except Busy:
                    await asyncio.sleep(BUSY_PAUSE)
        return slots

    async def _offer(self, led: LedPartition, commands: Iterable[Command]) -> list[object]:
        answers = [await slot for slot in await self._take(led, commands)]
        if not all(isinstance(answer, Accepted | Rejected) for answer in answers):
            raise Closed  # the writer has ended
        return answers

    # -- silent nodes --------------------------------------------------------------------------------------------

    async def _watch(self, partition: str, led: LedPartition) -> None:
        """Report nodes as lost after a lease, a heartbeat and `MARGIN` of silence, once the partition is ready."""
        while True:
            await asyncio.sleep(WATCH_PAUSE)
            for attached in led.attached.values():
                self._check_credential(partition, attached)
            ready, settings, own = await led.handle.read(
                lambda state: (state.readiness.ready, state.settings, convert.present_nodes(state))
            )
            if not ready:
                continue
            if led.ready_since is None:
                led.ready_since = self._steady()
            present = set(own)
            for attached in led.attached.values():
                if attached.open and attached.node not in present:
                    attached.cut()  # the node was removed or declared lost: a live agent joins again
            present |= led.attached.keys()
            for node, seen in led.nodes.items():
                if node not in present:
                    seen.lost = True  # the node was removed or declared lost by a command
            silent = self._silent_nodes(led, own, led.ready_since, settings)
            for node in silent:
                self._log("agent silent", {"partition": partition, "node": node})
                if node in led.attached:
                    led.attached[node].cut()
            lost = [MoveNode(name=node, action="lose", operator=True) for node in silent]
            for slot in await self._take(led, lost):
                await slot  # the state includes the loss before the next check

    def _silent_nodes(
        self, led: LedPartition, nodes: Iterable[str], ready_since: float, settings: PartitionSettings
    ) -> list[str]:
        """Return the nodes that have been silent for too long, and mark them as lost."""
        silent: list[str] = []
        for node in nodes:
            seen = led.nodes.setdefault(node, Seen(self._steady()))
            if seen.lost and node not in led.attached:
                seen.lost, seen.heard = False, self._steady()  # an operator expects it back: full time again
            lasts = (max(settings.lease, seen.lease) + settings.heartbeat) / SECOND
            late = max(seen.heard, ready_since) + lasts + MARGIN
            if not seen.lost and self._steady() > late:
                seen.lost = True
                silent.append(node)
        return silent

    def _check_credential(self, partition: str, attached: Attached) -> None:
        """Close the connection of a node with a revoked or expired key; request a new key before it expires."""
        validity = self._credentials.validity(attached.peer)
        if validity == "valid" or attached.refusal is not None:
            return
        if validity != "revoked" and attached.renewal is None:
            attached.renewal = self._steady()
            attached.put(wire.Renew())
        elif validity == "revoked" or (
            validity == "expired" and attached.renewal is not None and self._steady() > attached.renewal + RENEWAL_TIME
        ):
            self._log("agent cut off", {"partition": partition, "node": attached.node, "credential": validity})
            attached.refuse(
                f"the credential of node {attached.node} {'was revoked' if validity == 'revoked' else 'has expired'}; "
                f"join again with a new token: fairlead token create --role join --node {attached.node}"
            )

    # -- for the API ---------------------------------------------------------------------------------------------

    def ahead(self) -> dict[str, list[str]]:
        """Return by partition the nodes that report attempts or epochs which the journal never had."""
        return {name: sorted(led.ahead) for name, led in self._led.items() if led.ahead}

    def waits_for_ports(self, partition: str, node: str) -> bool:
        """True if launches for a node wait for the ports of their gang."""
        led = self._led.get(partition)
        return led is not None and led.orders.waits_for_ports(node)

    def connected(self, partition: str) -> dict[str, float]:
        """Return connected nodes → seconds since the last message from each."""
        led = self._led.get(partition)
        if led is None:
            return {}
        return {name: self._steady() - led.nodes[name].heard for name in sorted(led.attached)}

    async def log(self, partition: str, node: str, asked: wire.LogRequest) -> AsyncIterator[wire.LogPart]:
        """Yield a task's log from its node. The last part is marked, and has the problem if there is one.

        Raises `Away` if the node is not connected or disconnects.
        """
        async for part in self._read(partition, node, asked):
            if isinstance(part, wire.LogPart):
                yield part

    async def outputs(self, partition: str, node: str, asked: wire.OutputRequest) -> AsyncIterator[wire.OutputPart]:
        """Yield the logs and result files of tasks from their node. Raises `Away` as `log` does."""
        async for part in self._read(partition, node, asked):
            if not isinstance(part, wire.OutputPart):
                raise Away(part.problem)  # too many logs are being read on the node: try again later
            yield part

    def taken(self, partition: str, node: str, tasks: Tasks, user: str) -> None:
        """Tell a node that the result files of tasks are stored. A disconnected node lists them again when it joins."""
        led = self._led.get(partition)
        attached = led.attached.get(node) if led is not None else None
        if attached is not None:
            attached.put(wire.Taken(tasks, user))

    async def open_tunnel(self, partition: str, node: str, request: wire.OpenTunnel) -> Connection:
        """Let the agent of a node open a connection for a tunnel, and return it.

        Raises `Away` if the node is not connected or does not answer, and `Refused` if there can be no tunnel.
        """
        led = self._led.get(partition)
        attached = led.attached.get(node) if led is not None else None
        if led is None or attached is None or not attached.open:
            raise Away(f"node {node} is not connected; try again when it is back")
        if led.nodes[node].speaks < TUNNELS_FROM:
            raise Refused("node", f"the agent of node {node} is too old for tunnels; update it", "conflict")
        ticket = token_hex(16)
        awaited: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = awaited
        try:
            attached.put(msgspec.structs.replace(request, ticket=ticket))
            async with asyncio.timeout(TUNNEL_TIME):
                connection = await awaited
                answer = (await connection.recv()).decode("utf-8", "replace")
        except TimeoutError:
            raise Away(f"node {node} does not answer; try again") from None
        except Closed:
            raise Away(f"node {node} has closed the connection; try again") from None
        finally:
            del self._tickets[ticket]
        if answer != "+":
            await connection.close(1000, "refused")
            status, _, problem = answer.partition(" ")
            code = {"404": "gone", "429": "too many", "503": "unavailable"}.get(status, "conflict")
            if code in ("too many", "unavailable"):
                raise Unserved(code, f"{problem} (node {node})", 1)
            raise Refused("task", f"{problem} (node {node})", code)
        return connection

    def claim(self, ticket: str, connection: Connection) -> bool:
        """Give the connection of an agent to the tunnel that waits for it. Return False if none does."""
        awaited = self._tickets.get(ticket)
        if awaited is None or awaited.done():
            return False
        connection.trust()
        awaited.set_result(connection)
        return True

    async def _read(
        self, partition: str, node: str, asked: wire.LogRequest | wire.OutputRequest
    ) -> AsyncIterator[wire.LogPart | wire.OutputPart]:
        led = self._led.get(partition)
        attached = led.attached.get(node) if led is not None else None
        if attached is None or not attached.open:
            raise Away(f"node {node} is not connected; its logs are there when it is back")
        request = next(self._requests)
        reader = attached.readers[request] = asyncio.Queue[wire.LogPart | wire.OutputPart | None]()
        attached.put(msgspec.structs.replace(asked, request=request))
        last = False
        try:
            while not last:
                part = await reader.get()
                if part is None:
                    last = True
                    raise Away(f"node {node} is not connected any more; its logs are there when it is back")
                last = part.last
                yield part
                if not last:
                    attached.put(wire.LogMore(request))
        finally:
            del attached.readers[request]
            if not last:
                attached.put(wire.LogCancel(request))


def _launches_for(led: LedPartition, node: str, partition: Partition) -> wire.Work | None:
    """Return all launches that a node should have. Its agent takes each of them once."""
    node_id = partition.nodes.find(node)
    if node_id is None or not led.handle.leads:
        return None
    standing = outstanding_effects(partition, node_id)
    return led.orders.work(partition, msgspec.structs.replace(standing[0], stops=()), {}) if standing else None
