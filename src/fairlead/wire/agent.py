"""What an agent and the server say to each other: MessagePack, one message a frame of their WebSocket.

First each proves to the other that it has its key: `Knock`, `Challenge`, `Proof` (`wire/identity.py` has what is
signed). Then the agent greets, and is welcomed with what it should be doing. After that the server sends work, at most
one message a cycle, and the agent sends reports in numbered batches until they are confirmed, and a sign of life now
and then.
Times are in microseconds. Sets of tasks are flats as in `core/ranges.py`: (start, end, start, end, …).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

VERSION = 1
MOST_BYTES = 64 << 20
"""No message is larger."""
FIRST_BYTES = 4096
"""No message is larger before the agent has proved which node it is."""
LOG_PARTS = 32
"""Parts of a log that are under way at most."""
PATH = "/api/v1/agents"

State = Literal["running", "refused", "succeeded", "failed", "stopped", "lost"]
Stream = Literal["out", "err"]
Flat = tuple[int, ...]
Figure = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""What an agent measures or counts; nothing real is beyond these bounds."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record that travels as an array: a new field goes to the end and has a default."""


# -- parts of messages -------------------------------------------------------------------------------------------


class Tasks(Message, frozen=True):
    """Tasks of one stage under one attempt. The number of a job is never used again, its id may be."""

    job: str
    number: Figure
    stage: str
    attempt: Figure
    indices: Flat


class Spec(Message, frozen=True):
    """What to run. Values of secrets are here and nowhere else: they are never written down or logged."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    cpu: int = 0
    """In thousandths; 0 is no limit."""
    memory: int = 0
    """In bytes; 0 is no limit."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Variables and their values, which join the environment when a task starts."""
    user: str = ""
    """The user that submitted it."""


class Place(Message, frozen=True):
    """A node on which members of a gang are, where it is reached, and their ranks."""

    node: str
    address: str
    ranks: Flat


class Gang(Message, frozen=True):
    """Who works together. The rank of a task is `first` plus its index; places are in the order of their ranks."""

    size: int
    first: int
    port: int
    places: tuple[Place, ...]
    key: str = ""
    """What the members know each other by. Like values of secrets, it is never written down or logged."""


class Launch(Message, frozen=True):
    """Start these tasks. `spec` says which of the message's; devices are those of the first task, then of the second…

    With `rooms` above 0 they start as others of their chain on this node end, the lowest index first, so that as many
    run at a time.
    """

    tasks: Tasks
    spec: int
    devices: tuple[int, ...] = ()
    chain: int = 0
    rooms: int = 0
    gang: Gang | None = None


class Stop(Message, frozen=True):
    """Stop these tasks and confirm; with the cause `return`, only those that have not started."""

    tasks: Tasks
    cause: str


class Report(Message, frozen=True):
    """What became of tasks. Lists have an entry a task, in the order of the indices, or are empty."""

    tasks: Tasks
    state: State
    exit_code: int | None = None
    signal: Figure = 0
    reason: str = ""
    ran: tuple[Figure, ...] = ()
    cpu: tuple[Figure, ...] = ()
    """The time they computed."""
    memory: tuple[Figure, ...] = ()
    """The most bytes they had."""


# -- from the agent ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """An agent joins, for the first time or again. What it has, and what it knows of."""

    node: str
    resources: dict[str, int | float | str]
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    pool: str = ""
    address: str = ""
    """Where the other members of a gang reach its tasks."""
    machine: str = ""
    """What `this_machine` gives there."""
    running: tuple[Tasks, ...] = ()
    ended: tuple[Tasks, ...] = ()
    """Those whose reports were not confirmed: they follow."""
    notes: tuple[str, ...] = ()
    """What a person should know of this node, such as limits that it cannot set."""
    users: tuple[str, ...] = ()
    """The users whose tasks it takes; empty: all."""


class Reports(Message, frozen=True, tag=2):
    number: int
    reports: tuple[Report, ...]


class Beat(Message, frozen=True, tag=3):
    """A sign of life, and all that the agent knows to have started and whose end is not confirmed."""

    number: int
    known: tuple[Tasks, ...]


class LogPart(Message, frozen=True, tag=4):
    """A piece of a log, for whoever asked with that number. The last one says so, with the problem if there was one."""

    request: int
    offset: int
    data: bytes
    last: bool = False
    problem: str = ""


class Knock(Message, frozen=True, tag=5):
    """The first message of a connection: which node it is for. The server has to sign `nonce`."""

    version: int
    node: str
    nonce: bytes


class Proof(Message, frozen=True, tag=6):
    """The node's public key, and the challenge signed with it."""

    key: bytes
    signature: bytes
    instance: str
    """Where the key is used: another one if the agent's directory was copied. Part of what is signed."""
    token: str = ""
    """A join token, if the agent has one: it admits a key that the server does not know."""


class NewKey(Message, frozen=True, tag=7):
    """The answer to `Renew`: the key of later connections, which has signed this."""

    key: bytes
    signature: bytes


FromAgent = Hello | Reports | Beat | LogPart | Knock | Proof | NewKey

# -- from the server ---------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=1):
    """The agent is known. It takes orders of this epoch and of later ones, never of an earlier one."""

    epoch: int
    heartbeat: int
    lease: int
    """How long tasks go on without an answer from the server; 0 is for ever."""
    grace: int
    """How long a task has to end when it is told to stop."""
    lock: str = ""
    """On the server's own machine: a file that is locked while a server runs. While none does, no lease ends."""


class Work(Message, frozen=True, tag=2):
    """What to start and what to stop. Confirmations come first, then stops.

    A `standing` one is all there is to do: what waits in a chain and is not named is to be forgotten.
    """

    epoch: int
    specs: tuple[Spec, ...] = ()
    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()
    standing: bool = False
    confirmed: tuple[int, ...] = ()
    """Batches that are confirmed by the way, as by `Confirmed`."""


class Confirmed(Message, frozen=True, tag=3):
    """The reports of that batch are durable: they need not be sent again."""

    number: int


class Beaten(Message, frozen=True, tag=4):
    """The answer to a sign of life; it renews the lease from the time when that was sent."""

    number: int


class LogRequest(Message, frozen=True, tag=5):
    """Send a log from an offset on; the last bytes of it with a negative one. With `follow`, go on until it ends."""

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
    """One more part of a log may be sent: whoever reads it has taken one. At first `LOG_PARTS` may."""

    request: int


class Refusal(Message, frozen=True, tag=8):
    """The agent cannot join; what is wrong and what to do. It is closed after this."""

    problem: str
    final: bool = False
    """Whether to try again is of no use until somebody acts."""


class Challenge(Message, frozen=True, tag=9):
    """The answer to `Knock`, signed with the server's key. The node has to sign it too."""

    partition: str
    nonce: bytes
    key: bytes
    signature: bytes


class Renew(Message, frozen=True, tag=10):
    """The node's credential ends soon: send a new key."""


class Renewed(Message, frozen=True, tag=11):
    """The new key is admitted. The old one is, too, until the new one has opened a connection."""


FromServer = (
    Welcome | Work | Confirmed | Beaten | LogRequest | LogCancel | LogMore | Refusal | Challenge | Renew | Renewed
)


def this_machine() -> str:
    """The same for all processes of a machine, until it is started anew; empty where that is not known.

    An agent on the server's own machine can see whether a server runs.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


encode = msgspec.msgpack.Encoder().encode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
decode_from_server = msgspec.msgpack.Decoder(FromServer).decode
