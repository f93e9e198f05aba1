"""The operations of the HTTP API, each described once. From these rows come the routes with the checks of parameters,
OpenAPI, the methods of both Python clients, the types of the web page and the reference of the API.

CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from fairlead.wire import api as wire
from fairlead.wire.operation import (
    BYTES,
    EVENTS,
    TEXT,
    AfterEvent,
    AttemptNumber,
    Change,
    Cursor,
    Described,
    Digest,
    Followed,
    Index,
    LabelFilter,
    LastEvent,
    LastResults,
    Limit,
    Moment,
    Name,
    OfPartition,
    Operation,
    QueueFilter,
    QueuePath,
    Row,
    row_of,
)

# -- jobs --------------------------------------------------------------------------------------------------------

JobId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@+-]{1,63}$")]
JobIds = Annotated[list[JobId], Meta(max_length=200, description="Only jobs with these ids.")]
WithTasks = Annotated[bool, Meta(description="Also list the tasks of each stage, in groups of the same state.")]


class Submit(Change[wire.Submitted], POST="jobs", status=201):
    """Submit a job. When the answer arrives, the job is durable. The answer has its id, and a warning if it cannot run
    until the cluster changes."""

    document: wire.JobDocument


class SubmitMany(Change[wire.Batch], POST="jobs/batch", seconds=60.0):
    """Submit many jobs. Each is accepted or refused separately; the answer has one item per job, in the same order."""

    document: wire.BatchDocument


class Rerun(Change[wire.Submitted], POST="jobs/{job}/rerun", status=201):
    """Submit a job that is over again, or only its tasks that have not succeeded. The new job has no
    dependencies."""

    job: Name
    document: wire.RerunDocument


class SubmitPipeline(Change[wire.Pipeline], POST="pipelines", status=201, seconds=60.0):
    """Submit several jobs that depend on each other, all or none. They get the label `pipeline` with a value of their
    own, by which they can be listed, held or killed together."""

    document: wire.PipelineDocument


class Jobs(Followed[wire.JobPage], GET="jobs"):
    """List the jobs that the caller may see and that match all filters, newest first."""

    state: Annotated[list[str], Meta(description="One or more states of jobs.")] = field(default_factory=list)
    user: Name = ""
    queue: QueueFilter = ""
    name: Name = ""
    label: LabelFilter = ""
    search: Annotated[str, Meta(max_length=63, description="A part of the job's name or of its user.")] = ""
    id: JobIds = field(default_factory=list)
    tasks: WithTasks = False
    cursor: Cursor = ""
    limit: Limit = 100


class Job(Followed[wire.Job], GET="jobs/{job}"):
    """Return a job. With `wait`, answer when the job has ended, but after `wait` seconds at the latest. A killed job
    has ended when its last process has. A job that the scheduler has forgotten is read from the history."""

    job: Name
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for the end of the job.")] = 0.0
    tasks: WithTasks = False


class Tasks(Followed[wire.TaskPage], GET="jobs/{job}/tasks"):
    """List the tasks of a job by stage and index."""

    job: Name
    stage: Name = ""
    cursor: Cursor = ""
    limit: Limit = 100


class Table(OfPartition[wire.Table], GET="jobs/{job}/table", seconds=60.0):
    """List the tasks of a job with their parameters, states and times, and the last line of their output."""

    job: Name
    stage: Name = ""
    stream: Annotated[
        Literal["out", "err"] | None, Meta(description="Also read the last line of this stream of each task.")
    ] = None
    cursor: Cursor = ""
    limit: Limit = 100


class Explain(OfPartition[wire.Explanation], GET="jobs/{job}/explain"):
    """Explain the state of a job: one sentence, then why its tasks wait, stop, or run on their nodes. A reason for
    waiting has remedies, each of which would start the tasks in the next cycle. They are found by trials on a copy of
    the state, which takes longer than the rest."""

    job: Name
    remedies: Annotated[bool, Meta(description="Also find remedies that would start the waiting tasks.")] = True


class Sentences(OfPartition[wire.Sentences], POST="explain", asks=True):
    """Return the sentence of the explanation of up to 200 jobs. Jobs that the caller may not see are left out."""

    document: wire.ExplainDocument


class Kill(Change[wire.Done], POST="jobs/{job}/kill"):
    """Kill a job: cancel its waiting tasks and stop its running tasks. A finished job stays as it is."""

    job: Name


class Hold(Change[wire.Done], POST="jobs/{job}/hold"):
    """Hold a job: its running tasks continue, and its other tasks start only after it is released. The job keeps its
    place. A hold by an operator can be released only by an operator."""

    job: Name


class Release(Change[wire.Done], POST="jobs/{job}/release"):
    """Release a held job. Its tasks keep their place and start when their turn comes."""

    job: Name


class Requeue(Change[wire.Done], POST="jobs/{job}/requeue"):
    """Stop the running tasks of a job, with a grace period. They wait again at their earlier place, and start as a new
    attempt without using a try. A job that has ended cannot be requeued."""

    job: Name


class StopTasks(Change[wire.Done], POST="jobs/{job}/tasks/{action}"):
    """Stop some tasks of a job, with a grace period and without using a try. Killed tasks do not start again; requeued
    ones wait again at their earlier place; replaced ones are asked for at once, before new work. A strict gang starts
    again as a whole, and single tasks of it cannot be killed."""

    job: Name
    action: wire.TaskAction
    document: wire.TasksDocument


class Scale(Change[wire.Done], POST="jobs/{job}/scale"):
    """Change the number of tasks of a stage. The stage may be left out if the job has only one."""

    job: Name
    document: wire.ScaleDocument


class UpdateJob(Change[wire.Done], POST="jobs/{job}/update"):
    """Change a job that waits: its queue, priority, dependencies, labels, resources, limits or throttle. The caller
    needs the rights that submitting the changed job would need."""

    job: Name
    document: wire.ChangesDocument


class SetPriority(Change[wire.Done], POST="jobs/{job}/priority"):
    """Change the priority of a job. Owners may lower it, or raise it up to their `max_priority` in its queue; operators
    may raise it further."""

    job: Name
    document: wire.PriorityDocument


class TryPriority(OfPartition[wire.PriorityStops], POST="jobs/{job}/priority/dry-run", asks=True):
    """Return the running tasks of other jobs that would be stopped at once if a job had another priority. Nothing is
    changed. While the job waits, more may be stopped later."""

    job: Name
    document: wire.PriorityDocument


# -- predictions -------------------------------------------------------------------------------------------------


class DryRun(OfPartition[wire.DryRun], POST="jobs/dry-run", asks=True):
    """Return what the next cycle would do with a job, without submitting it: where it would start, or what is ahead of
    it and which remedies would start it, or why it cannot run at all. A job that could not be submitted is refused here
    too. With `eta`, a job that would wait gets a predicted start, which takes longer."""

    document: wire.JobDocument
    eta: Annotated[bool, Meta(description="Also predict the start of a job that would wait.")] = False


class Eta(OfPartition[wire.Eta], GET="jobs/{job}/eta", seconds=160.0):
    """Predict when a waiting job starts, from several simulated futures: the likely start and a 90 % interval."""

    job: Name


class Etas(OfPartition[wire.Etas], POST="eta", asks=True, seconds=160.0):
    """Predict when up to 1,000 jobs start, all in the same simulated futures."""

    document: wire.EtaDocument


class PromisedStarts(OfPartition[wire.PromisedStarts], GET="promises"):
    """Return how many of the starts that were foretold came within their interval, for jobs that were decided since a
    time, by default in the last 7 days."""

    since: Moment = ""


class WhatIf(OfPartition[wire.WhatIf], POST="whatif", asks=True, role="operator", seconds=160.0):
    """Compare start times with and without a supposed change, for the jobs that wait now. With `replay`, the jobs of
    that last period are run again from an empty cluster and compared instead. Nothing is changed."""

    document: wire.WhatIfDocument


# -- the past ----------------------------------------------------------------------------------------------------


class Story(OfPartition[wire.Story], GET="jobs/{job}/story", seconds=160.0):
    """Return what happened to a job, in order and with reasons: its submission, holds, starts, stops with the job that
    caused them, and ends; and why tasks wait now. Before the journal begins, only the submission and the attempts are
    known."""

    job: Name


class Bill(OfPartition[wire.Bill], GET="jobs/{job}/bill", seconds=160.0):
    """Return how long a job has waited for what: loans of other queues, other jobs of its queue, its limits, broken
    nodes and so on. The parts add up to the wait. They come from the journal, as far as it reaches back."""

    job: Name


class Trace(OfPartition[wire.RecordedTrace], GET="trace", role="operator", seconds=160.0):
    """Return a trace for `fairlead simulate`: the present nodes, and those jobs submitted since a time that ran and
    have ended. Their commands, environments and files are left out."""

    since: Moment = ""


class History(OfPartition[wire.HistoryPage], GET="history"):
    """List finished jobs that match all filters, newest first, including those already forgotten by the scheduler.
    `since` and `until` select by the time of the end. Users see their own jobs."""

    user: Name = ""
    queue: QueueFilter = ""
    state: Annotated[str, Meta(max_length=63, description="`succeeded`, `failed` or `killed`.")] = ""
    name: Annotated[
        str,
        Meta(
            max_length=100,
            description="A pattern for names: `*` is any text, `?` one character, `[abc]` one of these.",
        ),
    ] = ""
    label: LabelFilter = ""
    node: Annotated[str, Meta(max_length=63, description="A node on which a task of the job ran.")] = ""
    since: Moment = ""
    until: Moment = ""
    id: JobIds = field(default_factory=list)
    attempts: Annotated[bool, Meta(description="Also list the ended attempts of each job.")] = False
    cursor: Cursor = ""
    limit: Limit = 100


class Attempts(OfPartition[wire.Attempts], GET="jobs/{job}/attempts"):
    """List the ended attempts of a job, also of a forgotten one, with the resources used by its stages."""

    job: Name
    cursor: Cursor = ""
    limit: Limit = 100


class OpenTunnel(OfPartition[bytes], GET="jobs/{job}/tunnel", status=101, media=BYTES):
    """Open a tunnel to a running task, as a WebSocket. Only the user of the job may.

    The messages are the frames of `fairlead/wire/tunnel_frames.py`. A client whose connection broke opens the same
    tunnel again, with `new=false`, and goes on where it was.
    """

    job: Name
    tunnel: Annotated[str, Meta(min_length=16, max_length=64, description="A random name, which the client chooses.")]
    kind: Annotated[
        Literal["task", "command", "ports"],
        Meta(
            description="Where it leads: to the standard streams of the task, to a new process beside it, or to ports "
            "of its node."
        ),
    ]
    stage: Name = ""
    index: Index = 0
    attempt: Annotated[AttemptNumber | None, Meta(description="By default the last attempt.")] = None
    new: Annotated[bool, Meta(description="False if this client was connected to the tunnel before.")] = True
    command: Annotated[
        list[str], Meta(max_length=500, description="The process; by default the shell of the task's user.")
    ] = field(default_factory=list)
    environment: Annotated[list[str], Meta(max_length=500, description="Variables of the process, as NAME=value.")] = (
        field(default_factory=list)
    )
    directory: Annotated[str, Meta(max_length=4_096, description="By default that of the task.")] = ""
    terminal: Annotated[bool, Meta(description="Give the process a terminal.")] = False


class Log(OfPartition[bytes], GET="jobs/{job}/log", media=TEXT):
    """Return the output of one attempt of a task as raw bytes. The stage may be left out if the job has only one.

    The header `Fairlead-Attempt` has the number of the attempt. With `after`, the problem `gone` means that the task
    has ended and no further attempt follows.
    """

    job: Name
    stage: Name = ""
    index: Index = 0
    stream: Literal["out", "err"] = "out"
    offset: Annotated[
        int, Meta(ge=-(2**53), le=2**53, description="First byte; a negative offset counts from the end.")
    ] = 0
    follow: Annotated[
        bool, Meta(description="Send new output until the attempt ends; wait for it if it has not started.")
    ] = False
    attempt: Annotated[AttemptNumber | None, Meta(description="By default the last attempt.")] = None
    after: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None, Meta(description="Choose the first attempt above this number.")
    ] = None


class Results(OfPartition[wire.Results], GET="jobs/{job}/results"):
    """List the result files that were collected when tasks ended, by task. The files of `waiting` tasks have not
    arrived from the nodes yet. A listed file may have been removed since, by its age or the total size limit."""

    job: Name
    stage: Name = ""
    index: Index | None = None
    attempt: LastResults = None
    cursor: Cursor = ""
    limit: Limit = 100


class ResultFile(OfPartition[bytes], GET="jobs/{job}/results/file", media=BYTES):
    """Return one result file. The stage may be left out if only one stage has result files."""

    job: Name
    name: Annotated[str, Meta(max_length=1_000, description="The name, as it is listed.")]
    stage: Name = ""
    index: Index = 0
    attempt: LastResults = None


class ResultArchive(OfPartition[bytes], GET="jobs/{job}/results/archive", media=BYTES):
    """Return the result files of a job as a tar archive, in which they are named `STAGE.INDEX.ATTEMPT/NAME`. Files that
    were removed are left out. If the answer breaks off, the archive has no end mark."""

    job: Name
    stage: Name = ""
    index: Index | None = None
    attempt: LastResults = None


class JobUsage(OfPartition[wire.JobUsage], GET="jobs/{job}/usage"):
    """List the CPU time and the memory that the ended attempts of a job used, by task, beside what was asked for."""

    job: Name
    cursor: Cursor = ""
    limit: Limit = 100


class UsageReport(OfPartition[wire.UsageReport], GET="usage/report", seconds=600.0):
    """Sum up the resources of all tasks, including running and preempted ones, and the waits of jobs, by group and in
    total. Without a partition, all partitions count. Users see only their own use."""

    by: Annotated[str, Meta(max_length=100, description="One or more of user, queue, partition, job, with commas.")] = (
        ""
    )
    since: Moment = ""
    until: Moment = ""
    user: Name = ""
    used: Annotated[bool, Meta(description="Also what tasks used of what they had, as far as it was measured.")] = False


class Waits(OfPartition[wire.Waits], GET="usage/waits", seconds=160.0):
    """Return how long jobs waited for what in a period, by group, as far as the journal reaches back. Users see only
    their own waits."""

    by: Annotated[str, Meta(max_length=100, description="One or more of user, queue, week, with commas.")] = "queue"
    since: Moment = ""
    until: Moment = ""
    user: Name = ""


class Timeline(OfPartition[wire.Timeline], GET="timeline"):
    """Return the tasks that ran in a period, by default the last hour, with their nodes: all running tasks, and the
    newest 20,000 ended ones. Users see their own tasks."""

    since: Moment = ""
    until: Moment = ""


class Watch(OfPartition[wire.Event], GET="watch", media=EVENTS):
    """Stream events of jobs that the caller may see, and of nodes. A broken stream resumes after the last event id."""

    job: Annotated[str, Meta(max_length=63, description="Only events of this job.")] = ""
    after: AfterEvent = None
    last: LastEvent = field(default="", name="Last-Event-ID")


# -- nodes and queues --------------------------------------------------------------------------------------------


class Nodes(Followed[wire.Nodes], GET="nodes"):
    """List nodes with their resources, use and state, in the order in which they joined."""

    state: Literal["up", "disconnected", "draining", "disabled", "lost"] | None = None
    pool: Name | None = None
    cursor: Cursor = ""
    limit: Limit = 1_000


class Node(Followed[wire.Node], GET="nodes/{node}"):
    """Return a node with its resources, use and state."""

    node: Name


class MoveNode(Change[wire.Done], POST="nodes/{node}/{action}", role="operator"):
    """Drain (running tasks finish), disable, or enable a node."""

    node: Name
    action: Literal["drain", "disable", "enable"]
    reason: Annotated[str, Meta(max_length=200, description="Why it is drained or disabled.")] = ""
    lasts: Annotated[
        float,
        Meta(ge=0, le=31_622_400, description="Seconds for which it is drained or disabled; 0 until it is enabled."),
    ] = 0.0
    delay: Annotated[
        float,
        Meta(
            ge=0,
            le=31_622_400,
            description="Seconds after which it is drained. Until then it takes tasks that a time limit ends before.",
        ),
    ] = 0.0


class Closures(OfPartition[wire.Closures], GET="closures"):
    """List closures: labels whose nodes are disabled for a time."""


class CloseNodes(Change[wire.Done], POST="closures", role="operator"):
    """Disable the nodes with all of these labels for a time, also those that join during it. Running tasks finish."""

    document: wire.ClosureDocument


class OpenNodes(Change[wire.Done], POST="closures/end", role="operator"):
    """Enable the nodes with these labels that were disabled for a time."""

    document: wire.OpeningDocument


class RemoveNode(Change[wire.Done], DELETE="nodes/{node}", role="operator"):
    """Remove a node. Tasks running there are lost at once."""

    node: Name


class RevokeNode(OfPartition[wire.Done], DELETE="nodes/{node}/credential", role="operator"):
    """Revoke the key of a node: its connection ends, and its tasks are lost when its lease expires. A new join token
    for the node admits it again."""

    node: Name


class Queues(Followed[wire.Queues], GET="queues"):
    """List queues with their settings, use and waiting asks, by path."""


class Queue(Followed[wire.Queue], GET="queues/{queue}"):
    """Return a queue with its settings, use and waiting asks."""

    queue: QueuePath


class MoveQueue(Change[wire.Done], POST="queues/{queue}/{action}", role="operator"):
    """Stop a queue, so that it accepts and starts no jobs, or start it again."""

    queue: QueuePath
    action: Literal["start", "stop"]


class Loans(Followed[wire.Loans], GET="loans"):
    """List the leaf queues that use more than their entitlement, and when these loans return by the estimates and time
    limits of their tasks."""


class Lanes(OfPartition[wire.Lanes], GET="lanes"):
    """List the lanes with the most waiting tasks, and all other lanes together as `other`."""

    limit: Limit = 100
    first: Annotated[int, Meta(ge=0, le=100, description="Number of asks to show of each lane.")] = 5


class BringToFront(Change[wire.Done], POST="lanes/front", role="operator"):
    """Move the asks of a stage to the front of their lanes."""

    document: wire.AskDocument


class CancelAsk(Change[wire.Done], POST="lanes/cancel"):
    """Cancel the waiting tasks of a stage."""

    document: wire.AskDocument


class ResetLane(Change[wire.Done], POST="lanes/reset", role="operator"):
    """Free a stuck lane: if its first ask belongs to the given job, move the ask to the end of the lane, or cancel
    it."""

    document: wire.ResetDocument


class Holds(Followed[wire.Holds], GET="holds"):
    """List the nodes that are held for jobs that have waited too long, oldest first, and those promised to jobs."""


class ReleaseHold(Change[wire.Done], POST="holds/release", role="operator"):
    """Release the nodes held for a job, or for one of its stages, so that other work can use them."""

    document: wire.HoldDocument


# -- pools -------------------------------------------------------------------------------------------------------


class Usage(OfPartition[wire.Usage], GET="usage"):
    """Return the numbers of nodes of each pool by use: available, needed by waiting work, idle and ordered. Empty until
    the partition is ready."""


class Pools(OfPartition[wire.Pools], GET="pools"):
    """List pools with their sizes, their orders, the jobs that the orders are for, and orphaned machines."""


class Pool(OfPartition[wire.Pool], GET="pools/{pool}"):
    """Return a pool with its size, its orders, the jobs that the orders are for, and orphaned machines."""

    pool: Name


class MovePool(Change[wire.Done], POST="pools/{pool}/{action}", role="operator"):
    """Pause a pool, so that it neither grows nor shrinks by itself, or resume it at once."""

    pool: Name
    action: Literal["pause", "resume"]


class ScalePool(Change[wire.Done], POST="pools/{pool}/scale", role="operator"):
    """Order nodes, or give back idle ones, until the pool has this size. Later demand may change the size again."""

    pool: Name
    document: wire.PoolSizeDocument


# -- partitions, servers and their configuration -----------------------------------------------------------------


class Partitions(Operation[wire.Partitions], GET="partitions"):
    """List partitions with their readiness, nodes and jobs."""


class MarkReady(Operation[wire.Done], POST="partitions/{partition}/ready", role="operator"):
    """Mark a partition ready: place tasks now, without waiting for nodes and managers to report after a start."""

    partition: Name


class Servers(Operation[wire.Servers], GET="servers", role="operator"):
    """List the servers that are up and share the database, with the partitions that each leads.

    A server without a database is the only one and is listed without an address.
    """


class DrainServer(Operation[wire.Done], POST="servers/{server}/drain", role="operator"):
    """Drain a server: it gives up its partitions and can then be stopped. It keeps answering reads."""

    server: Name


class EnableServer(Operation[wire.Done], POST="servers/{server}/enable", role="operator"):
    """Allow a drained server to lead partitions again."""

    server: Name


class Config(Operation[wire.Config], GET="config", role="operator"):
    """Return the configuration as it would be written in fairlead.yaml."""

    defaults: Annotated[bool, Meta(description="Also return settings that have their default.")] = False


class ValidateConfig(Operation[wire.Applied], POST="config/validate", asks=True, role="operator"):
    """Check a configuration, and return what it would change. Nothing is changed."""

    document: wire.ConfigDocument


class ApplyConfig(Operation[wire.Applied], PUT="config", role="admin"):
    """Apply a configuration as a whole. If any part is refused, nothing changes. The answer lists what changed."""

    document: wire.ConfigDocument


class SetPartition(Operation[wire.Applied], PUT="partitions/{partition}", role="admin"):
    """Add a partition, or replace its configuration."""

    partition: Name
    document: wire.PartitionDocument


class RemovePartition(Operation[wire.Applied], DELETE="partitions/{partition}", role="admin"):
    """Remove a partition, and release its jobs, allocations and nodes at once."""

    partition: Name


class Shares(OfPartition[wire.Shares], GET="shares", role="operator"):
    """Return the shares of queues, the patterns that choose a queue by user, and the settings of rebalancing."""


class SetShares(OfPartition[wire.Applied], PUT="shares", role="operator"):
    """Change the given keys of the configuration. The change lasts until the next configuration is applied, also over
    restarts."""

    document: wire.SharesDocument


# -- resource managers -------------------------------------------------------------------------------------------


class Managers(OfPartition[wire.Managers], GET="managers", role="operator"):
    """List the registered resource managers with their numbers of nodes."""


class RegisterManager(OfPartition[wire.Done], POST="managers/{name}", role="manager"):
    """Register a manager, for the first time or after a restart. The manager then sends its state."""

    name: Name


class RemoveManager(Change[wire.Done], DELETE="managers/{name}", role="operator"):
    """Remove a manager that will not return: its jobs are killed and its nodes leave."""

    name: Name


class UpdateManager(OfPartition[wire.Updated], POST="managers/{name}/updates", role="manager"):
    """Apply a batch of nodes, jobs, allocations to recover, asks and releases. Each item has its own answer."""

    name: Name
    document: wire.UpdateDocument


class ManagerState(OfPartition[wire.ManagerState], GET="managers/{name}/state", role="manager"):
    """Return the nodes, jobs and tasks of a manager as the partition knows them. Managers read this when they start."""

    name: Name


class ManagerWaiting(OfPartition[wire.WaitingJobs], POST="managers/{name}/waiting", asks=True, role="manager"):
    """Explain why jobs of a manager wait, for many jobs at once."""

    name: Name
    document: wire.WaitingJobsDocument


class ManagerQueues(OfPartition[wire.Queues], GET="managers/{name}/queues", role="manager"):
    """Return all queues with their use, as managers show them to their users."""

    name: Name


class ManagerEvents(OfPartition[wire.ManagerEvent], GET="managers/{name}/events", role="manager", media=EVENTS):
    """Stream events for a manager: allocated, release, released, ended, node. After `reset`, events were missed: read
    the state again."""

    name: Name
    after: AfterEvent = None
    last: LastEvent = field(default="", name="Last-Event-ID")


# -- access ------------------------------------------------------------------------------------------------------


class Whoami(Operation[wire.Caller], GET="whoami"):
    """Return user, groups, role and scope of the caller's token."""


class Login(Operation[wire.Session], POST="session", asks=True, status=201):
    """Open a session of the web page for the caller's token. The answer sets a cookie and
    has the key of the session."""


class Logout(Operation[wire.Done], DELETE="session", asks=True):
    """Remove the cookie of the session."""


class StoreContent(OfPartition[wire.Content], PUT="contents/{digest}"):
    """Store content for the caller's jobs, such as the files of a `snapshot`, piece by piece. The answer says where the
    next piece begins. Content that is stored already is not sent again.

    It counts as a result file of the user: it is removed 30 days after it was last stored, or earlier if the user has
    more than their share of `--outputs-size`.
    """

    digest: Digest
    document: wire.ContentDocument


class Content(OfPartition[bytes], GET="contents/{digest}", media=BYTES):
    """Return content that the caller, or a task of the caller, has stored."""

    digest: Digest


class Secrets(Operation[wire.Secrets], GET="secrets"):
    """List the names of the caller's secrets. Values are sent only to tasks of the caller's jobs."""


class SetSecret(Operation[wire.Done], PUT="secrets/{name}"):
    """Set a secret. Tasks of the caller's jobs that use it get the value when they start, unless it has expired.

    A value has at most 65,536 bytes, and all values of one user 1,048,576, in UTF-8.
    """

    name: Name
    document: wire.SecretDocument


class RemoveSecret(Operation[wire.Done], DELETE="secrets/{name}"):
    """Remove a secret. Tasks that start later do not get it."""

    name: Name


class Tokens(Operation[wire.Tokens], GET="tokens", role="admin"):
    """List all tokens, without their secrets, which are not stored."""


class CreateToken(Operation[wire.NewToken], POST="tokens", role="admin", status=201):
    """Create a token. The answer has its secret, which cannot be shown again."""

    document: wire.TokenDocument


class RevokeToken(Operation[wire.Done], DELETE="tokens/{token}", role="admin"):
    """Revoke a token: requests with it are refused, and streams opened with it end."""

    token: Name


# -- the web page ------------------------------------------------------------------------------------------------


class Map(OfPartition[wire.NodeMap], GET="map"):
    """Return all nodes of a partition in columns, with the queue tree, at most a second old. The answer is always
    compressed with gzip."""


class Live(OfPartition[wire.MapChange], GET="live", media=EVENTS):
    """Stream the changes of the map, at most one a second. After `reset` the map has to be read again."""

    after: Annotated[str, Meta(max_length=40, description="`at` of the map, or of the last change.")] = ""


class MapTasks(OfPartition[wire.MapTasks], GET="map/tasks"):
    """List the live tasks of up to 300 nodes, by node and stage. The web page asks for the nodes that it shows large.
    Tasks of jobs that the caller may not see are without names."""

    node: Annotated[list[str], Meta(min_length=1, max_length=300, description="Names of nodes.")]


class PastMap(OfPartition[wire.PastMap], GET="map/past"):
    """Return the map of nodes and queues as it was at the time `until`, replayed from the journal. There is no map if
    the journal does not reach back that far."""

    until: Moment = ""


class PastQueues(OfPartition[wire.PastQueues], GET="map/queues"):
    """Return share, entitlement, use and loan of each queue at evenly spaced times, replayed from the journal as far as
    it reaches back. The default is the last hour."""

    since: Moment = ""
    until: Moment = ""
    points: Annotated[int, Meta(ge=2, le=500, description="The number of times.")] = 60


# -- health ------------------------------------------------------------------------------------------------------


class Healthz(Operation[wire.Health], GET="/healthz", role=""):
    """Answer 200 while the process is alive."""


class Readyz(Operation[wire.Health], GET="/readyz", role=""):
    """Answer 503 until every partition is ready: its agents and resource managers have reported, or `ready_after` has
    passed."""


class Metrics(Operation[str], GET="/metrics", media=TEXT):
    """Return the metrics described in docs/metrics.md. Users who are not operators get no series of single jobs."""


class Openapi(Operation[dict[str, Any]], GET="openapi.json", role=""):
    """Describe the API with OpenAPI."""


def rows() -> list[Row]:
    """Return the rows of all operations, in the order of this file."""
    return [row_of(each) for each in globals().values() if isinstance(each, Described) and each.__module__ == __name__]
