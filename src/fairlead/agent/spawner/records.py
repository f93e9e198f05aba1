"""The spawner's record of one task attempt, and the types of its messages, which the agent uses too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.agent.spawner.cgroups import Room
    from fairlead.agent.spawner.shared_logs import Pair
    from fairlead.agent.spawner.task_start import Ends

Key = tuple[int, str, int, int]
"""Job number, stage, attempt, index."""
Meta = tuple[str, int, str, int]
"""Job id, job number, stage, attempt."""
Listing = tuple[list[str], list[str]]
"""The names of the collected result files of a task, and warnings about others."""
Result = tuple[str, int, str, int, int, int] | tuple[str, int, str, int, int, int, Listing | None]
"""Kind of end, exit code or signal, reason, microseconds of run time and of CPU time, peak memory in bytes; then, if
the spawner has tried to collect result files, their list.

Kinds: `exit`, `signal`, `stopped` (on request), `failed` (the task cannot be started), `refused` (the machine could not
start it), `lost`, `returned` (the task was never started).
"""
Spec = tuple[
    tuple[str, ...],
    dict[str, str],
    str,
    int,
    int,
    str,
    str,
    tuple[tuple[str, ...], int, int] | None,
    str,
    tuple[int, int, int],
    tuple[str, tuple[str, ...], str],
]
"""Arguments, environment, working directory (empty: the user's home), milli-CPUs, bytes of memory, patterns of files
for standard output and error (empty: logs), patterns of result files with the most files and bytes, and the standard
input: `PIPE` or `PTY` if a tunnel leads there, else empty; and the signal for a stop, with the microseconds of run time
after which it is sent too, and those of the time limit, 0 for none; and its image, mounts and snapshot. Agents of
earlier versions leave the last three out.

0 milli-CPUs or 0 bytes mean no limit.
"""
PIPE, PTY = "pipe", "pty"
OWN_FOLDER = "%t"
"""Ends the value of FAIRLEAD_CHECKPOINT; in its place the spawner makes a folder for the task."""
PARAMETER = "FAIRLEAD_PARAM_"
"""Begins the names of variables with parameters of a sweep. The name of the parameter follows."""
WAITING, RUNNING, LEAVING, ENDED = "waiting", "running", "leaving", "ended"
NEVER = float("inf")


JOBS_PER_FOLDER, TASKS_PER_FOLDER = 100, 100


def folder_of(number: int, index: int) -> str:
    """Return the folder for the logs of a task. Jobs and arrays are spread, so that no folder gets many files."""
    return f"{number // JOBS_PER_FOLDER}.{index // TASKS_PER_FOLDER}"


class Task:
    """One attempt of a task, from its launch until the agent has confirmed its end."""

    __slots__ = (
        "began", "cause", "chain", "end_at", "ends", "index", "key", "kill_at", "meta", "own", "pair", "pid", "result",
        "room", "spec", "state", "why",
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
        self.room: Room | None = None
        self.ends: Ends | None = None
        """The descriptors of its tunnel, while it starts."""
        self.pair: Pair | None = None
        """The files for its output, while it has none of its own."""
        self.cause = ""
        """Why the task was asked to stop; empty if it was not."""
        self.kill_at = NEVER
        self.end_at = NEVER
        """When a task that was stopped with a signal of its own gets SIGTERM."""
        self.why = ""
        """What the task is told about why it stops."""
        self.result: Result | None = None

    @property
    def stdin(self) -> str:
        """What its standard input is: `PIPE`, `PTY` or nothing."""
        return self.spec[8] if self.spec is not None and len(self.spec) > 8 else ""

    @property
    def signal(self) -> tuple[int, float, float]:
        """Return the signal with which a stop begins, the seconds of run time after which it is sent, and those of the
        time limit; 0 for none."""
        number, after, limit = self.spec[9] if self.spec is not None and len(self.spec) > 9 else (0, 0, 0)
        return number, after / 1e6, limit / 1e6

    @property
    def image(self) -> str:
        return self._inside[0]

    @property
    def mounts(self) -> tuple[str, ...]:
        return self._inside[1]

    @property
    def snapshot(self) -> str:
        return self._inside[2]

    @property
    def _inside(self) -> tuple[str, tuple[str, ...], str]:
        return self.spec[10] if self.spec is not None and len(self.spec) > 10 else ("", (), "")

    @property
    def name(self) -> str:
        """The file name of the task's logs, without the suffix."""
        number, stage, attempt, index = self.key
        return f"{number}.{stage}.{index}.{attempt}"

    @property
    def folder(self) -> str:
        """The folder of the task's logs, below the logs of its user."""
        return folder_of(self.key[0], self.index)
