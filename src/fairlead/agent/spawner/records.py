"""What a spawner knows of one task."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.agent.spawner.asking import AskedRoom
    from fairlead.agent.spawner.limits import Room

    Key = tuple[int, str, int, int]
    """The number of the job, the stage, the attempt, the index."""
    Meta = tuple[str, int, str, int]
    """The job's id and number, the stage, the attempt."""
    Result = tuple[str, int, str, int, int, int]
    """How it ended, exit code or signal, why, microseconds it ran and computed, most bytes of memory.

    How: `exit`, `signal`, `stopped` (as it was told to), `failed` (it could not be started, by its own fault),
    `refused` (by the machine's), `lost`, or `returned` (it was never started).
    """
    Spec = tuple[tuple[str, ...], dict[str, str], str, str, int, int]
    """Arguments, environment, working directory (empty: the user's home), folder of logs, milli-CPUs, bytes of memory.

    A limit of 0 is none.
    """

WAITING, RUNNING, LEAVING, ENDED = "waiting", "running", "leaving", "ended"
NEVER = float("inf")


class Task:
    __slots__ = (
        "began", "cause", "chain", "index", "key", "kill_at", "meta", "own", "pid", "result", "room", "spec", "state",
    )  # fmt: skip

    def __init__(self, key: Key, meta: Meta, chain: int, spec: Spec | None, own: dict[str, str] | None) -> None:
        self.key = key
        self.meta = meta
        self.index = key[3]
        self.chain = chain
        self.spec = spec
        self.own = own
        self.state = WAITING
        self.pid = 0
        self.began = 0.0
        self.room: Room | AskedRoom | None = None
        self.cause = ""
        """Why it was told to stop; empty if it was not."""
        self.kill_at = NEVER
        self.result: Result | None = None

    @property
    def name(self) -> str:
        """What its logs are called."""
        number, stage, attempt, index = self.key
        return f"{number}.{stage}.{index}.{attempt}"
