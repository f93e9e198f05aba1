"""Messages between an agent and the server: MessagePack, one message per WebSocket frame.

First both ends authenticate: `Knock`, `Challenge`, `Proof` (`wire/handshake.py` has the signed data). Then the agent
sends `Hello`, and the server answers with `Welcome` and `Work`. After that the server sends work, at most one message
per cycle. The agent sends heartbeats, and reports in numbered batches, which it repeats until they are confirmed.
Times are in microseconds. Sets of task indices are flat ranges: (start, end, start, end, …), without the ends.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

VERSION = 1
"""The version of the handshake."""
SPEAKS = 3
"""The version of the messages after it. Older ends ignore fields that they do not know."""
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message."""
MAX_LATER_BYTES = 4 << 20
"""Largest message of an agent, so that none keeps the server from others for long."""
MAX_FIRST_MESSAGE_BYTES = 4096
"""Largest message before the agent has authenticated."""
MAX_OUTPUT = 64 << 20
"""Largest copy of one log on the server. A node keeps 32 MiB, but a task can make its log larger."""
LOG_PARTS = 32
"""Parts of a log that may be sent before the reader asks for more."""
PATH = "/api/v1/agents"

State = Literal["running", "refused", "succeeded", "failed", "stopped", "lost"]
Stream = Literal["out", "err"]
Flat = tuple[int, ...]
Figure = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number that an agent measured or counted. A message with a number outside of these bounds is refused."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of messages. They are encoded as arrays: new fields go to the end and have defaults."""


# -- parts of messages -------------------------------------------------------------------------------------------


class Tasks(Message, frozen=True):
    """Tasks of one stage under one attempt. The number of a job is never reused; its id may be."""

    job: str
    number: Figure
    stage: str
    attempt: Figure
    indices: Flat


class Spec(Message, frozen=True):
    """A program to run. It is the only message with values of secrets, which are never written to disk or logged."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    cpu: int = 0
    """In thousandths; 0 is no limit."""
    memory: int = 0
    """In bytes; 0 is no limit."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Environment variables whose values are secrets. They are added when a task starts."""
    user: str = ""
    """The user that submitted the job."""
    output: str = ""
    """Patterns of files for standard output and error, relative to the directory; empty for the agent's own logs."""
    error: str = ""
    results: tuple[str, ...] = ()
    """Patterns of the files to collect when a task ends, and the limits on their number and bytes per task."""
    max_result_files: int = 0
    max_result_bytes: int = 0
    parameters: tuple[str, ...] = ()
    """Names of the parameters of a sweep."""
    stdin: str = ""
    """`pipe` or `pty` if a tunnel leads to the standard input, else empty."""
    signal: int = 0
    """The signal that a task gets first when it is stopped; 0 for SIGTERM."""
    signal_after: int = 0
    """The run time after which it gets that signal, because its time limit is near; 0 for never."""
    time_limit: int = 0
    """0 for none. The server enforces it; a task is told about it."""
    image: str = ""
    """The container image in which the tasks run; empty for none."""
    mounts: tuple[str, ...] = ()
    snapshot: str = ""
    """The SHA-256 of the stored files that become the working directory; empty for none."""


class Place(Message, frozen=True):
    """A node of a gang: its address, and the ranks of the members that run there."""

    node: str
    address: str
    ranks: Flat


class Gang(Message, frozen=True):
    """A generation of a gang: one start of the whole gang. The rank of a task is `first` plus its index, unless `ranks`
    is given. Places are ordered by rank. With port 0, the agent of the first member chooses the ports, and tells them
    with `Meetings`."""

    size: int
    first: int
    port: int
    places: tuple[Place, ...]
    key: str = ""
    """The key with which members authenticate. Like values of secrets, it is never written to disk or logged."""
    generation: int = 0
    ranks: tuple[int, ...] = ()
    """The ranks of the tasks of this launch, in the order of their indices; empty if they follow from `first`."""
    barrier: int = 0
    """The port of `fairlead.gang`; 0 for the one after `port`."""


class Meeting(Message, frozen=True):
    """The ports at which the members of a generation of a gang meet, on the node of the first."""

    key: str
    """The key of the generation."""
    port: Figure
    barrier: Figure


class Launch(Message, frozen=True):
    """An order to start tasks. `spec` is an index into `Work.specs`; devices are listed task by task.

    With `slots` above 0, the tasks wait in a chain on this node, where `slots` tasks run at a time: when one ends, the
    waiting task with the lowest index starts.
    """

    tasks: Tasks
    spec: int
    devices: tuple[int, ...] = ()
    chain: int = 0
    slots: int = 0
    gang: Gang | None = None
    values: tuple[tuple[int, ...], ...] = ()
    """The values of the parameters, task by task, as indices into `Work.texts`."""
    token: str = ""
    """The token with which the tasks call the server; empty for none."""
    before: tuple[tuple[str, Flat], ...] = ()
    """How the last attempts of the tasks ended, with the indices of those that ended so."""


class Stop(Message, frozen=True):
    """An order to stop tasks and to report their end. With the cause `return`, only tasks that have not started
    stop."""

    tasks: Tasks
    cause: str
    grace: int = 0
    """The time that the tasks have to end; 0 for that of `Welcome`."""


class Report(Message, frozen=True):
    """A new state of tasks. Lists have one entry per task, in the order of the indices, or are empty."""

    tasks: Tasks
    state: State
    exit_code: int | None = None
    signal: Figure = 0
    reason: str = ""
    ran: tuple[Figure, ...] = ()
    cpu: tuple[Figure, ...] = ()
    """CPU time."""
    memory: tuple[Figure, ...] = ()
    """Peak memory in bytes."""
    results: bool = False
    """True if the task has patterns for result files, so the server has to ask which files were collected."""


# -- from the agent ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first message of an authenticated agent: its node's resources, and the tasks it knows."""

    node: str
    resources: dict[str, int | float | str]
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    pool: str = ""
    address: str = ""
    """The address at which other members of a gang reach tasks on this node."""
    machine: str = ""
    """The result of `this_machine` on the node."""
    running: tuple[Tasks, ...] = ()
    ended: tuple[Tasks, ...] = ()
    """Tasks that ended and whose reports were not confirmed. The reports follow."""
    notes: tuple[str, ...] = ()
    """Notes for operators, such as limits that this node cannot enforce."""
    users: tuple[str, ...] = ()
    """The users whose tasks the node takes; empty for all."""
    run_times: tuple[Figure, ...] = ()
    """Average run time so far of the tasks of each entry of `running`."""
    epoch: int = 0
    """The highest epoch of a server that the agent has seen; 0 if none."""
    speaks: int = 1
    """The version of these messages that the agent speaks. From 2 on it chooses the ports of gangs; from 3 on it opens
    tunnels."""
    meetings: tuple[Meeting, ...] = ()
    """The ports that it has chosen."""


class Reports(Message, frozen=True, tag=2):
    number: int
    reports: tuple[Report, ...]


class Beat(Message, frozen=True, tag=3):
    """A heartbeat, with all tasks that started on this node and have no confirmed end."""

    number: int
    known: tuple[Tasks, ...]
    lease: int = -1
    """The lease that the agent keeps; -1 if it does not say so. The server counts with a shorter lease from then on."""


class LogPart(Message, frozen=True, tag=4):
    """A part of a log, in answer to `LogRequest`. The last part has `last` set, and the problem if there was one."""

    request: int
    offset: int
    data: bytes
    last: bool = False
    problem: str = ""


class Knock(Message, frozen=True, tag=5):
    """The first message of a connection. The server has to sign `nonce`."""

    version: int
    node: str
    nonce: bytes


class Proof(Message, frozen=True, tag=6):
    """The node's public key, and the challenge signed with it."""

    key: bytes
    signature: bytes
    instance: str
    """Identifies the directory that holds the key, to detect a copied one. Part of the signed data."""
    token: str = ""
    """A join token, if the agent has one. It admits a key that the server does not know."""


class Output(Message, frozen=True):
    """A piece of a log of one task, or of the result file `name`."""

    index: Figure
    stream: Stream | Literal["file"]
    offset: Figure
    data: bytes
    name: str = ""


class Collected(Message, frozen=True):
    """The result files of one task, with their sizes. Sent after all of their contents."""

    index: Figure
    files: tuple[tuple[str, Figure], ...]
    warning: str = ""
    """What was not collected, and why."""


class OutputPart(Message, frozen=True, tag=8):
    """Pieces of output, in answer to `OutputRequest`. The last part has `last` set. An empty log has no pieces."""

    request: int
    outputs: tuple[Output, ...]
    last: bool = False
    collected: tuple[Collected, ...] = ()


class Staged(Message, frozen=True, tag=9):
    """Tasks whose result files are still on the node. Sent after the agent has joined."""

    tasks: tuple[Tasks, ...]


class Meetings(Message, frozen=True, tag=10):
    """The ports that the agent has chosen for gangs whose first members start on this node."""

    meetings: tuple[Meeting, ...]


class NewKey(Message, frozen=True, tag=7):
    """The answer to `Renew`: the key for later connections, with its signature."""

    key: bytes
    signature: bytes


FromAgent = Hello | Reports | Beat | LogPart | Knock | Proof | NewKey | OutputPart | Staged | Meetings

# -- from the server ---------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=1):
    """The agent is admitted. It obeys only orders of this epoch and of later ones."""

    epoch: int
    heartbeat: int
    lease: int
    """Time that tasks keep running without contact to the server; 0 is unlimited."""
    grace: int
    """Time that a task has to end after a stop signal."""
    lock: str = ""
    """For agents on the server's machine: a file that the server keeps locked while it runs. Leases do not expire while
    no server runs, so that tasks survive a restart."""


class Work(Message, frozen=True, tag=2):
    """Orders to start and stop tasks. Confirmations are handled first, then stops.

    A message with `standing` has all orders for the node: the agent drops waiting tasks of chains that it does not
    name.
    """

    epoch: int
    specs: tuple[Spec, ...] = ()
    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()
    standing: bool = False
    confirmed: tuple[int, ...] = ()
    """Numbers of report batches that this message confirms, as `Confirmed` does."""
    texts: tuple[str, ...] = ()
    """Values of parameters. Many tasks of a sweep can have the same large value."""


class Confirmed(Message, frozen=True, tag=3):
    """The reports of a batch are durable and need not be sent again."""

    number: int


class Beaten(Message, frozen=True, tag=4):
    """The answer to a heartbeat. It renews the lease, counted from the time the heartbeat was sent."""

    number: int
    lease: int = -1
    """The lease from now on, as in `Welcome`; -1 if it is that of `Welcome`."""


class LogRequest(Message, frozen=True, tag=5):
    """A request for a log from an offset on; negative offsets count from the end. With `follow`, new output is sent
    until the task ends."""

    request: int
    number: int
    stage: str
    index: int
    attempt: int
    stream: Stream = "out"
    offset: int = 0
    follow: bool = False
    user: str = ""
    """The user that submitted the job."""


class LogCancel(Message, frozen=True, tag=6):
    request: int


class LogMore(Message, frozen=True, tag=7):
    """Allows one more part of a log, because a part was read. At first `LOG_PARTS` parts are allowed."""

    request: int


class Refusal(Message, frozen=True, tag=8):
    """The agent cannot join; the text says what is wrong and what to do. The server then closes the connection."""

    problem: str
    final: bool = False
    """True if retrying is useless until an operator acts."""


class Challenge(Message, frozen=True, tag=9):
    """The answer to `Knock`, signed with the server's key. The node has to sign it too."""

    partition: str
    nonce: bytes
    key: bytes
    signature: bytes


class Renew(Message, frozen=True, tag=10):
    """A request for a new key: the node's credential expires soon."""


class Renewed(Message, frozen=True, tag=11):
    """The new key is admitted. The old key stays valid until a connection is opened with the new one."""


class OutputRequest(Message, frozen=True, tag=12):
    """A request for the result files of ended tasks and, with `logs`, their logs. `LogCancel` and `LogMore` apply to it
    as to a `LogRequest`."""

    request: int
    tasks: Tasks
    user: str
    """The user that submitted the job."""
    logs: bool = True
    max_result_files: int = 0
    max_result_bytes: int = 0


class Taken(Message, frozen=True, tag=13):
    """The result files of these tasks are stored, so the node can remove them."""

    tasks: Tasks
    user: str


class OpenTunnel(Message, frozen=True, tag=14):
    """A request to connect a tunnel to a running task (`wire/tunnel_frames.py`). The agent opens a WebSocket to `PATH`
    and `/TICKET` for it, and its first message there is `+`, or the problem after its status."""

    ticket: str
    """Random; it admits one connection, within seconds."""
    number: int
    stage: str
    index: int
    attempt: int
    user: str
    """The user that submitted the job, and that asks for the tunnel."""
    tunnel: str
    """The number of the tunnel, which its client chose."""
    new: bool
    """True if the client has not been connected before."""
    kind: str
    """`task`: the standard streams of the task. `command`: a new process beside it. `ports`: connections to ports."""
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    terminal: bool = False


FromServer = (
    Welcome
    | Work
    | Confirmed
    | Beaten
    | LogRequest
    | LogCancel
    | LogMore
    | Refusal
    | Challenge
    | Renew
    | Renewed
    | OutputRequest
    | Taken
    | OpenTunnel
)


def this_machine() -> str:
    """Return the boot id, which all processes of a machine share until it reboots; empty if unknown.

    If agent and server have the same id, they are on one machine, and the agent can check there whether a server runs.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


encode = msgspec.msgpack.Encoder().encode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
decode_from_server = msgspec.msgpack.Decoder(FromServer).decode
