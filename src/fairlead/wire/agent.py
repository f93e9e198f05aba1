"""Messages between an agent and the server: MessagePack, one message per WebSocket frame.

First both ends authenticate: `Knock`, `Challenge`, `Proof` (`wire/identity.py` has the signed data). Then the agent
sends `Hello`, and the server answers with `Welcome` and `Work`. After that the server sends work, at most one message
per cycle. The agent sends heartbeats, and reports in numbered batches, which it repeats until they are confirmed.
Times are in microseconds. Sets of tasks are flats as in `core/ranges.py`: (start, end, start, end, …).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message."""
MAX_FIRST_MESSAGE_BYTES = 4096
"""Largest message before the agent has authenticated."""
MAX_OUTPUT = 64 << 20
"""Bytes that a server copies of one log. A node keeps 32 MiB, but a task can make its log larger."""
LOG_PARTS = 32
"""Parts of a log that may be in flight."""
PATH = "/api/v1/agents"

State = Literal["running", "refused", "succeeded", "failed", "stopped", "lost"]
Stream = Literal["out", "err"]
Flat = tuple[int, ...]
Figure = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number measured or counted by an agent; real values stay within these bounds."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of messages. They are encoded as arrays: a new field goes to the end and has a default."""


# -- parts of messages -------------------------------------------------------------------------------------------


class Tasks(Message, frozen=True):
    """Tasks of one stage under one attempt. The number of a job is never reused; its id may be."""

    job: str
    number: Figure
    stage: str
    attempt: Figure
    indices: Flat


class Spec(Message, frozen=True):
    """A program to run. Values of secrets are in no other message, and are never written to disk or logged."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    cpu: int = 0
    """In thousandths; 0 is no limit."""
    memory: int = 0
    """In bytes; 0 is no limit."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Variables and their values, added to the environment when a task starts."""
    user: str = ""
    """The user that submitted the job."""
    output: str = ""
    """Patterns of files for standard output and error, relative to the directory; empty for logs of the agent."""
    error: str = ""
    results: tuple[str, ...] = ()
    """Patterns of the files that are collected when a task ends, and how many files and bytes of a task may be."""
    max_result_files: int = 0
    max_result_bytes: int = 0


class Place(Message, frozen=True):
    """A node with members of a gang: its address and their ranks."""

    node: str
    address: str
    ranks: Flat


class Gang(Message, frozen=True):
    """The members of a gang. The rank of a task is `first` plus its index; places are ordered by rank."""

    size: int
    first: int
    port: int
    places: tuple[Place, ...]
    key: str = ""
    """The key with which members authenticate. Like values of secrets, it is never written to disk or logged."""


class Launch(Message, frozen=True):
    """An order to start tasks. `spec` is an index into `Work.specs`; devices are listed task by task.

    With `rooms` above 0, tasks start as earlier tasks of their chain on this node end, lowest index first, so that
    `rooms` tasks run at a time.
    """

    tasks: Tasks
    spec: int
    devices: tuple[int, ...] = ()
    chain: int = 0
    rooms: int = 0
    gang: Gang | None = None


class Stop(Message, frozen=True):
    """An order to stop tasks and confirm it; with the cause `return`, only tasks that have not started."""

    tasks: Tasks
    cause: str


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
    """True if result files of these tasks were collected, or if it was tried: the server has to take them."""


# -- from the agent ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """An agent joins, for the first time or again, with its resources and the tasks it knows."""

    node: str
    resources: dict[str, int | float | str]
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    pool: str = ""
    address: str = ""
    """The address at which other members of a gang reach its tasks."""
    machine: str = ""
    """The result of `this_machine` on the node."""
    running: tuple[Tasks, ...] = ()
    ended: tuple[Tasks, ...] = ()
    """Ended tasks with unconfirmed reports; the reports follow."""
    notes: tuple[str, ...] = ()
    """Notes for operators, such as limits that this node cannot enforce."""
    users: tuple[str, ...] = ()
    """The users whose tasks it takes; empty for all."""
    run_times: tuple[Figure, ...] = ()
    """How long the tasks of each entry of `running` have run, on average."""
    epoch: int = 0
    """The highest epoch of a server that it has seen; 0 if there was none."""


class Reports(Message, frozen=True, tag=2):
    number: int
    reports: tuple[Report, ...]


class Beat(Message, frozen=True, tag=3):
    """A heartbeat, with all tasks that started on this node and have no confirmed end."""

    number: int
    known: tuple[Tasks, ...]


class LogPart(Message, frozen=True, tag=4):
    """A part of the log of a `LogRequest`. The last part has `last` set, and the problem if there was one."""

    request: int
    offset: int
    data: bytes
    last: bool = False
    problem: str = ""


class Knock(Message, frozen=True, tag=5):
    """The first message of a connection: the name of the node. The server has to sign `nonce`."""

    version: int
    node: str
    nonce: bytes


class Proof(Message, frozen=True, tag=6):
    """The node's public key, and the challenge signed with it."""

    key: bytes
    signature: bytes
    instance: str
    """Where the key is used; differs if the agent's directory was copied. Part of the signed data."""
    token: str = ""
    """A join token, if the agent has one: it admits a key that is new to the server."""


class Output(Message, frozen=True):
    """A piece of a log of one task, or of the result file `name`."""

    index: Figure
    stream: Stream | Literal["file"]
    offset: Figure
    data: bytes
    name: str = ""


class Collected(Message, frozen=True):
    """The result files of one task, with their sizes. All of their pieces were sent before."""

    index: Figure
    files: tuple[tuple[str, Figure], ...]
    warning: str = ""
    """What was not collected, and why."""


class OutputPart(Message, frozen=True, tag=8):
    """Pieces of the output of an `OutputRequest`. The last part has `last` set. A log without output has no piece."""

    request: int
    outputs: tuple[Output, ...]
    last: bool = False
    collected: tuple[Collected, ...] = ()


class Staged(Message, frozen=True, tag=9):
    """Tasks whose result files are on the node; sent after the agent has joined."""

    tasks: tuple[Tasks, ...]


class NewKey(Message, frozen=True, tag=7):
    """The answer to `Renew`: the key for later connections, with its signature."""

    key: bytes
    signature: bytes


FromAgent = Hello | Reports | Beat | LogPart | Knock | Proof | NewKey | OutputPart | Staged

# -- from the server ---------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=1):
    """The agent is admitted. It takes orders of this epoch and of later ones, never of an earlier one."""

    epoch: int
    heartbeat: int
    lease: int
    """How long tasks run without an answer from the server; 0 is unlimited."""
    grace: int
    """How long a task has to end after a stop signal."""
    lock: str = ""
    """On the server's own machine: a file that is locked while a server runs. While none runs, no lease expires."""


class Work(Message, frozen=True, tag=2):
    """Orders to start and stop tasks. Confirmations are handled first, then stops.

    A message with `standing` is complete: the agent forgets tasks that wait in a chain and are not named in it.
    """

    epoch: int
    specs: tuple[Spec, ...] = ()
    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()
    standing: bool = False
    confirmed: tuple[int, ...] = ()
    """Numbers of batches that this message confirms, like `Confirmed`."""


class Confirmed(Message, frozen=True, tag=3):
    """The reports of a batch are durable and need not be sent again."""

    number: int


class Beaten(Message, frozen=True, tag=4):
    """The answer to a heartbeat. It renews the lease, counted from the time the heartbeat was sent."""

    number: int


class LogRequest(Message, frozen=True, tag=5):
    """A request for a log from an offset; a negative offset counts from the end. With `follow`, until the task ends."""

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
    """Allows one more part of a log, because the reader has taken one. `LOG_PARTS` parts are allowed at first."""

    request: int


class Refusal(Message, frozen=True, tag=8):
    """The agent cannot join: what is wrong and what to do. The connection is closed after this."""

    problem: str
    final: bool = False
    """True if a new attempt fails too until an operator acts."""


class Challenge(Message, frozen=True, tag=9):
    """The answer to `Knock`, signed with the server's key. The node has to sign it too."""

    partition: str
    nonce: bytes
    key: bytes
    signature: bytes


class Renew(Message, frozen=True, tag=10):
    """A request for a new key: the node's credential expires soon."""


class Renewed(Message, frozen=True, tag=11):
    """The new key is admitted. The old one stays valid until the new one has opened a connection."""


class OutputRequest(Message, frozen=True, tag=12):
    """A request for the result files of tasks that have ended, and for their logs.

    It is cancelled and continued like that for one log.
    """

    request: int
    tasks: Tasks
    user: str
    """The user that submitted the job."""
    logs: bool = True
    max_result_files: int = 0
    max_result_bytes: int = 0


class Taken(Message, frozen=True, tag=13):
    """The result files of these tasks are stored, and the node can remove them."""

    tasks: Tasks
    user: str


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
)


def this_machine() -> str:
    """Return the boot id: the same for all processes of a machine until it restarts, empty if unknown.

    Agent and server compare it: on the server's own machine, the agent can check whether a server runs.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


encode = msgspec.msgpack.Encoder().encode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
decode_from_server = msgspec.msgpack.Decoder(FromServer).decode
