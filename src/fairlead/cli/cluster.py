"""The cluster on the command line: nodes, queues, lanes, partitions, readiness, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.listing import Column, Columns, Watch, chosen
from fairlead.cli.listing import show as show_list
from fairlead.cli.options import AsJson, LiveJobName, Partition, Yes, open_client
from fairlead.cli.output import ago, ahead, amounts, calls_server, print_json, print_list, print_table, print_text
from fairlead.cli.serving import rotate_key

if TYPE_CHECKING:
    from fairlead.wire import api as wire

node = typer.Typer(name="node", help="List, show, drain, enable and remove nodes.", no_args_is_help=True)
queue = typer.Typer(name="queue", help="List, stop and start queues.", no_args_is_help=True)
lane = typer.Typer(name="lane", help="List waiting tasks by queue; move and cancel them.", no_args_is_help=True)
partition_app = typer.Typer(name="partition", help="List, add, change and remove partitions.", no_args_is_help=True)
share = typer.Typer(name="share", help="Show and set the shares of queues.", no_args_is_help=True)
secret = typer.Typer(name="secret", help="List, set and remove secrets that jobs can use.", no_args_is_help=True)
token = typer.Typer(name="token", help="Create, list and revoke access tokens.", no_args_is_help=True)

NodeState = Literal["up", "disconnected", "draining", "disabled", "lost"]
Role = Literal["user", "operator", "admin", "join"]
NodeName = Annotated[str, typer.Argument(help="Name of a node.", metavar="NODE", autocompletion=completion.nodes)]
Reason = Annotated[str, typer.Option(help="The reason, which `node list` shows. At most 200 characters.")]
QueuePath = Annotated[
    str, typer.Argument(help="Path of a queue, such as root.ml.", metavar="QUEUE", autocompletion=completion.queues)
]
StageName = Annotated[str, typer.Argument(help="Name of a stage of the job.", metavar="STAGE")]
PartitionName = Annotated[
    str, typer.Argument(help="Name of a partition.", metavar="PARTITION", autocompletion=completion.partitions)
]


def _request(form: Any, method: str, path: str, document: Any = None, **parameters: Any) -> Any:
    from fairlead.client.calls import API, Call

    with open_client() as client:
        return client.send(Call(form, method, f"{API}/{path}", document, **parameters))


def _part(name: str, field: str) -> str:
    from fairlead.client.calls import part

    return part(name, field)


def _do(method: str, path: str, as_json: bool, default: str, document: Any = None, **parameters: Any) -> None:
    """Send a request that changes something, and print the note of the answer, or the default text."""
    from fairlead.wire import api as wire

    done = _request(wire.Done, method, path, document, **parameters)
    if as_json:
        print_json(done)
    else:
        print_text(done.note or default)


# -- nodes -------------------------------------------------------------------------------------------------------


@node.command("list")
@calls_server
def list_nodes(
    state: Annotated[NodeState | None, typer.Option(help="Only nodes in this state.")] = None,
    columns: Columns = "",
    watch: Watch = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List nodes with their state, resources and use.

    A node is `disconnected` while its agent is not connected to the server. It gets no new tasks then, and is `lost`
    if its agent stays away.
    """
    shown = chosen(NODE_COLUMNS, columns, as_json)
    with open_client(partition) as client:
        show_list(lambda: list(client.nodes(state=state)), shown, as_json, watch)


def _state(node: wire.Node) -> str:
    """Return the state of a node with what an operator should know about it."""
    away = "" if node.disconnected is None else f"agent not connected for {ago(node.disconnected)}"
    return ", ".join(filter(None, (node.state, away, node.reason, node.credential.removeprefix("valid"))))


NODE_COLUMNS: tuple[Column[wire.Node], ...] = (
    Column("node", lambda node: node.name),
    Column("state", _state),
    Column("pool", lambda node: node.pool),
    Column("tasks", lambda node: node.tasks),
    Column("used", lambda node: amounts(node.used) or "-"),
    Column("has", lambda node: amounts(node.resources)),
    Column("labels", lambda node: " ".join(f"{key}={value}" for key, value in sorted(node.labels.items())), False),
    Column("taints", lambda node: " ".join(node.taints), False),
    Column("users", lambda node: " ".join(node.users), False),
    Column("gpus", lambda node: " ".join(f"{used:g}" for used in node.devices), False),
    Column("kept", lambda node: _kept(node.held_for, node.held_for_others), False),
    Column("manager", lambda node: node.manager, False),
    Column("reason", lambda node: node.reason, False),
)
"""What `node list` can show of a node."""


def _kept(seen: list[str], others: int) -> str:
    """Return the jobs that a node is held for, as text; empty if there are none."""
    jobs = [f"job {job}" for job in seen]
    if others:
        jobs.append(f"{others} of other users")
    return f"for {', '.join(jobs)}" if jobs else ""


@node.command("show")
@calls_server
def show_node(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show a node: its state, resources, labels, taints and the state of its key."""
    from fairlead.wire import api as wire

    view: wire.Node = _request(wire.Node, "GET", f"nodes/{_part(name, 'node')}", partition=partition)
    if as_json:
        print_json(view)
        return
    print_text(f"node {view.name}: {view.state}, {view.tasks} tasks{', avoided' if view.avoided else ''}")
    for what, value in (
        ("agent", "" if view.disconnected is None else f"not connected for {ago(view.disconnected)}"),
        ("reason", view.reason),
        ("kept", _kept(view.held_for, view.held_for_others)),
        ("has", amounts(view.resources)),
        ("used", amounts(view.used)),
        ("gpus", " ".join(f"{used:g}" for used in view.devices)),
        ("pool", view.pool),
        ("manager", view.manager),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(view.labels.items()))),
        ("taints", " ".join(view.taints)),
        ("key", _credential(view.credential, view.credential_expires)),
        ("users", " ".join(view.users)),
    ):
        if value:
            print_text(f"  {what:<8}{value}")


@node.command()
@calls_server
def drain(name: NodeName, reason: Reason = "", partition: Partition = "", as_json: AsJson = False) -> None:
    """Let the running tasks of a node finish, and give it no new ones."""
    _do("POST", f"nodes/{_part(name, 'node')}/drain", as_json, f"{name} drains", partition=partition, reason=reason)


@node.command()
@calls_server
def disable(name: NodeName, reason: Reason = "", partition: Partition = "", as_json: AsJson = False) -> None:
    """Give a node no new tasks until `node enable`, also after its agent restarts. Running tasks go on."""
    _do(
        "POST",
        f"nodes/{_part(name, 'node')}/disable",
        as_json,
        f"{name} is disabled",
        partition=partition,
        reason=reason,
    )


@node.command()
@calls_server
def enable(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Give a drained or disabled node new tasks again."""
    _do("POST", f"nodes/{_part(name, 'node')}/enable", as_json, f"{name} is up", partition=partition)


@node.command()
@calls_server
def remove(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Remove a node. Its running tasks count as lost at once.

    An agent that still runs joins again: stop it first, or revoke its key with `node revoke`.
    """
    _do("DELETE", f"nodes/{_part(name, 'node')}", as_json, f"{name} was removed", partition=partition)


@node.command()
@calls_server
def revoke(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Revoke the key of a node: its agent can no longer connect.

    Its tasks count as lost when its lease expires. A token of `fairlead token create --role join --node NODE` admits
    the node again.
    """
    _do("DELETE", f"nodes/{_part(name, 'node')}/credential", as_json, f"{name} was revoked", partition=partition)


def _credential(standing: str, expires: float | None) -> str:
    return standing if standing != "valid" or expires is None else f"valid for {ahead(expires)}"


# -- queues and lanes --------------------------------------------------------------------------------------------


@queue.command("list")
@calls_server
def list_queues(partition: Partition = "", as_json: AsJson = False) -> None:
    """List queues with their share and use.

    RUNNING is the number of jobs with running tasks. WAITING is the number of groups of waiting tasks: one or more
    for each stage of a job.
    """
    with open_client(partition) as client:
        queues = client.queues()
    print_list(
        queues,
        as_json,
        ("QUEUE", "STATE", "SHARE", "USED", "LIMIT", "RUNNING", "WAITING"),
        lambda queue: (
            "  " * queue.path.count(".") + queue.path.rpartition(".")[2],
            queue.state,
            "" if queue.share is None else queue.share,
            amounts(queue.used) or "-",
            "" if queue.limit is None else amounts(queue.limit),
            queue.running,
            queue.asks,
        ),
    )


@queue.command()
@calls_server
def stop(path: QueuePath, partition: Partition = "", as_json: AsJson = False) -> None:
    """Stop a queue: it takes no new jobs and starts no tasks. Running tasks go on."""
    _do("POST", f"queues/{_part(path, 'queue')}/stop", as_json, f"{path} is stopped", partition=partition)


@queue.command()
@calls_server
def start(path: QueuePath, partition: Partition = "", as_json: AsJson = False) -> None:
    """Start a queue that was stopped."""
    _do("POST", f"queues/{_part(path, 'queue')}/start", as_json, f"{path} is active", partition=partition)


@node.command("held")
@calls_server
def list_holds(partition: Partition = "", as_json: AsJson = False) -> None:
    """List nodes that are kept for a job.

    A node is held for a job that has waited too long, promised to a job for which other tasks stop there, or ordered
    for it from a pool.
    """
    from fairlead.wire import api as wire

    kept: wire.Holds = _request(wire.Holds, "GET", "holds", partition=partition)
    if as_json:
        print_json(kept)
        return
    rows: list[tuple[wire.Hold | wire.Promise, str, str]] = [(hold, "held", ahead(hold.until)) for hold in kept.holds]
    rows += [(promise, "ordered" if promise.ordered else "promised", "") for promise in kept.promises]
    print_table(
        ("JOB", "STAGE", "KIND", "TASKS", "NODES", "SINCE", "ENDS IN", "ON"),
        [
            (
                entry.job,
                entry.stage,
                kind,
                entry.tasks,
                len(entry.nodes),
                ago(entry.since),
                ends,
                " ".join(entry.nodes[:10]) + (" …" if len(entry.nodes) > 10 else ""),
            )
            for entry, kind, ends in rows
        ],
    )


@node.command("release")
@calls_server
def release_hold(
    job: LiveJobName,
    stage: Annotated[str, typer.Argument(help="Name of a stage. By default all stages.", metavar="STAGE")] = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Release the nodes that are held for a job, so that other jobs can use them."""
    document = {"job": job} | ({"stage": stage} if stage else {})
    _do("POST", "holds/release", as_json, f"the hold of {job} is released", document, partition=partition)


@lane.command("list")
@calls_server
def list_lanes(partition: Partition = "", as_json: AsJson = False) -> None:
    """List waiting tasks by lane: tasks of one queue that need the same.

    ASKS is the number of groups of waiting tasks, HEAD the job and stage that is next, WAITS how long it has waited.
    """
    from fairlead.wire import api as wire

    answer: wire.Lanes = _request(wire.Lanes, "GET", "lanes", partition=partition, first=1)
    if not answer.ready:
        print_text(
            "fairlead: the partition is not ready, so nothing is placed yet; see `fairlead partition list`", err=True
        )
    print_list(
        answer.lanes,
        as_json,
        ("QUEUE", "SHAPE", "ASKS", "TASKS", "HEAD", "WAITS"),
        lambda lane: (
            lane.queue,
            lane.shape,
            lane.asks,
            lane.tasks,
            f"{lane.first[0].job} {lane.first[0].stage}" if lane.first else "",
            ago(lane.first[0].waiting_since) if lane.first else "",
        ),
    )


@lane.command()
@calls_server
def front(job: LiveJobName, stage: StageName = "main", partition: Partition = "", as_json: AsJson = False) -> None:
    """Move the waiting tasks of a stage to the front of their lane."""
    document = {"job": job, "stage": stage}
    _do("POST", "lanes/front", as_json, f"{job} {stage} is at the front", document, partition=partition)


@lane.command()
@calls_server
def cancel(job: LiveJobName, stage: StageName = "main", partition: Partition = "", as_json: AsJson = False) -> None:
    """Cancel the waiting tasks of a stage. Its running tasks go on."""
    document = {"job": job, "stage": stage}
    _do("POST", "lanes/cancel", as_json, f"cancelled the waiting tasks of {job} {stage}", document, partition=partition)


@lane.command()
@calls_server
def reset(
    path: QueuePath,
    job: LiveJobName,
    give_up: Annotated[
        bool, typer.Option("--cancel", help="Cancel the waiting tasks instead of moving them to the end.")
    ] = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Move this job to the end if it blocks its lane."""
    document = {"queue": path, "job": job, "cancel": give_up}
    _do("POST", "lanes/reset", as_json, f"{job} is at the end of its lane", document, partition=partition)


# -- partitions, readiness ---------------------------------------------------------------------------------------


@partition_app.command("list")
@calls_server
def list_partitions(as_json: AsJson = False) -> None:
    """List partitions: whether they place tasks yet, and the number of their nodes and jobs."""
    from fairlead.wire import api as wire

    partitions: list[wire.Partition] = _request(wire.Partitions, "GET", "partitions").partitions

    def is_ready(partition: wire.Partition) -> str:
        if partition.ready is None:
            return f"led by {partition.leader or 'no server'}"
        return "yes" if partition.ready else f"waits for {', '.join(partition.waiting_for)}"

    columns = ("PARTITION", "READY", "NODES", "JOBS")
    print_list(
        partitions,
        as_json,
        columns,
        lambda partition: (partition.name, is_ready(partition), partition.nodes, partition.jobs),
    )


@partition_app.command("set")
@calls_server
def set_partition(
    name: PartitionName,
    file: Annotated[
        Path | None,
        typer.Argument(help="YAML file with its settings, as below `partitions: NAME:` in a configuration."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a partition, or replace the settings of one."""
    from fairlead.cli.config import document_of, show_differences
    from fairlead.wire import api as wire

    done = _request(
        wire.Applied, "PUT", f"partitions/{_part(name, 'partition')}", {} if file is None else document_of(file)
    )
    show_differences(done, as_json)


@partition_app.command("remove")
@calls_server
def remove_partition(
    name: PartitionName,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove a partition: kill its jobs and remove its nodes at once."""
    from fairlead.cli.config import show_differences
    from fairlead.wire import api as wire

    if not yes:
        typer.confirm(f"Kill all jobs of {name} and remove its nodes?", abort=True)
    show_differences(_request(wire.Applied, "DELETE", f"partitions/{_part(name, 'partition')}"), as_json)


@calls_server
def ready(name: PartitionName = "default", as_json: AsJson = False) -> None:
    """Place tasks at once after a start of the server.

    Without this, a partition waits up to `ready_after` for the nodes and resource managers that it knows.
    """
    _do("POST", f"partitions/{_part(name, 'partition')}/ready", as_json, f"{name} is ready")


# -- shares ------------------------------------------------------------------------------------------------------


@share.command("list")
@calls_server
def list_shares(partition: Partition = "", as_json: AsJson = False) -> None:
    """Show the shares of queues and their use.

    Also shown are the patterns that choose the queue of a user, and when a queue gets back what others have borrowed.
    """
    from fairlead.wire import api as wire

    shares = _request(wire.Shares, "GET", "shares", partition=partition)
    if as_json:
        print_json(shares)
        return
    with open_client(partition) as client:
        figures = {queue.path: queue for queue in client.queues()}
    rows = [
        (
            path,
            "" if percent is None else percent,
            f"{figures[path].entitlement_percent:.1f}%",
            f"{figures[path].use_percent:.1f}%",
            f"{figures[path].loan_percent:.1f}%",
            f"{figures[path].past_percent:.1f}%",
        )
        for path, percent in shares.shares.items()
        if path in figures
    ]
    print_table(("QUEUE", "SHARE", "ENTITLED", "USES", "ON LOAN", "PAST"), rows)
    for queue in figures.values():
        for user in queue.users:
            print_text(f"{queue.path}: {user.user} uses {user.use_percent:.1f}%, past {user.past_percent:.1f}%")
    for rule in shares.requestors:
        print_text(f"users that match {rule.match!r} go to {rule.queue}")
    if shares.rebalance_threshold != 0 and shares.rebalance_after:
        apart = "" if shares.rebalance_threshold is None else f" while queues are {shares.rebalance_threshold}% apart"
        typer.echo(f"loans are stopped when their owner has waited for {shares.rebalance_after:g} s{apart}")


@share.command("set")
@calls_server
def set_shares(
    path: QueuePath,
    share: Annotated[
        int,
        typer.Argument(
            help="Share, relative to those of the other queues below the same parent.", metavar="SHARE", min=0
        ),
    ],
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Set the share of a queue.

    Queues below the same parent divide its capacity by their shares: 150 beside 50 is three quarters. A queue without
    a share is entitled to nothing beside queues that have one. The shares of all of them are shown afterwards.
    """
    _set_shares({"shares": {path: share}}, partition, as_json)
    if not as_json:
        _show_siblings(path, partition)


def _show_siblings(path: str, partition: str) -> None:
    """Print the entitlements of a queue and its siblings, and warn about siblings without a share."""
    parent = path.rpartition(".")[0]
    with open_client(partition) as client:
        level = [queue for queue in client.queues() if queue.path.rpartition(".")[0] == parent]
    total = sum(queue.share or 0 for queue in level)
    for queue in level:
        share = "no share" if queue.share is None else f"share {queue.share} of {total}"
        print_text(f"{queue.path}: {share}, entitled to {queue.entitlement_percent:.1f}% of the cluster")
    without = [queue.path for queue in level if queue.share is None]
    if without and total:
        typer.echo(
            f"fairlead: warning: {', '.join(without)} has no share and is entitled to nothing; set one with "
            f"`fairlead share set {without[0]} N`",
            err=True,
        )


@share.command("match")
@calls_server
def set_patterns(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            help="Pattern of user names and their queue, such as 'ci-*=root.ci'; the first match counts.",
            metavar="PATTERN=QUEUE…",
        ),
    ] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Set the patterns that choose the queue of a user. The new list replaces the old one."""
    requestors = []
    for pattern in patterns or ():
        match, equals, path = pattern.rpartition("=")
        if not equals:
            raise typer.BadParameter(f"{pattern!r} is not PATTERN=QUEUE", param_hint="PATTERN")
        requestors.append({"match": match, "queue": path})
    _set_shares({"requestors": requestors}, partition, as_json)


@share.command()
@calls_server
def rebalance(
    threshold: Annotated[
        int | None,
        typer.Option(
            help="Distance in percent between the queue furthest above its share and the one furthest below. Above it, "
            "tasks on borrowed capacity are stopped; 0 is never."
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="How long that distance must last before tasks are stopped, such as 4min.")
    ] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Set when queues get back capacity that other queues have borrowed."""
    options = {"rebalance_threshold": threshold, "rebalance_after": after}
    _set_shares({key: value for key, value in options.items() if value is not None}, partition, as_json)


def _set_shares(document: dict[str, Any], partition: str, as_json: bool) -> None:
    from fairlead.cli.config import show_differences
    from fairlead.wire import api as wire

    show_differences(_request(wire.Applied, "PUT", "shares", document, partition=partition), as_json)


# -- secrets -----------------------------------------------------------------------------------------------------

SecretName = Annotated[str, typer.Argument(help="Name of a secret.", metavar="SECRET")]


@secret.command("list")
@calls_server
def list_secrets(as_json: AsJson = False) -> None:
    """List the names of your secrets."""
    from fairlead.wire import api as wire

    answer = _request(wire.Secrets, "GET", "secrets")
    if as_json:
        print_json(answer)
        return
    for name in answer.secrets:
        typer.echo(name)


@secret.command("set")
@calls_server
def set_secret(name: SecretName, as_json: AsJson = False) -> None:
    """Store a secret: the text on standard input, or typed at a prompt. At most 64 KiB."""
    import sys

    value = typer.prompt(name, hide_input=True) if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    _do("PUT", f"secrets/{_part(name, 'name')}", as_json, f"{name} is set", {"value": value})


@secret.command("remove")
@calls_server
def remove_secret(name: SecretName, as_json: AsJson = False) -> None:
    """Remove a secret."""
    _do("DELETE", f"secrets/{_part(name, 'name')}", as_json, f"{name} was removed")


secret.command("rotate-key")(rotate_key)


# -- tokens ------------------------------------------------------------------------------------------------------


@token.command("create")
@calls_server
def create_token(
    role: Annotated[
        Role,
        typer.Option(
            help="What the token allows: to use jobs of one user (user), to operate the cluster (operator), to "
            "change everything (admin), or to add a machine as a node (join)."
        ),
    ],
    user: Annotated[str | None, typer.Option(help="Name of the user that the token is for.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group of the user; may be repeated.")] = None,
    node_name: Annotated[
        str | None, typer.Option("--node", help="With --role join: the only node that may join with it.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="With --role join: nodes that join with it belong to this pool.", autocompletion=completion.pools
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="With --role join: nodes that join with it belong to this partition.",
            autocompletion=completion.partitions,
        ),
    ] = None,
    for_user: Annotated[
        list[str] | None,
        typer.Option("--for", help="With --role join: the node runs only tasks of this user; may be repeated."),
    ] = None,
    uses: Annotated[
        int | None, typer.Option(help="With --role join: number of machines that may join with it.", show_default="1")
    ] = None,
    note: Annotated[str, typer.Option(help="Note that `token list` shows.")] = "",
    expires_in: Annotated[
        str | None, typer.Option(help="Lifetime, such as 30d. By default unlimited; with --role join, 1h.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. It cannot be shown again."""
    from fairlead.wire import api as wire

    options = {
        "user": user,
        "groups": group,
        "partition": partition,
        "pool": pool,
        "node": node_name,
        "users": for_user,
        "uses": uses,
        "expires_in": expires_in,
    }
    document = {"role": role, "note": note} | {key: value for key, value in options.items() if value is not None}
    created = _request(wire.NewToken, "POST", "tokens", document)
    if as_json:
        print_json(created)
        return
    typer.echo(created.secret)
    if user is not None:
        for line in _separation(user):
            typer.echo(f"fairlead: {line}", err=True)


def _separation(user: str) -> list[str]:
    """Return warnings on nodes that refuse the tasks of the user, or do not separate them from those of other users.

    Empty if there is no other user or no node.
    """
    from fairlead.wire import api as wire

    tokens = _request(wire.Tokens, "GET", "tokens").tokens
    others = {token.user for token in tokens if token.role != "join"} - {user}
    with open_client() as client:
        nodes = [node for node in client.nodes() if not node.manager]
    if not others or not nodes:
        return []
    closed = [node for node in nodes if node.users and user not in node.users]
    mixed = [node for node in nodes if node.labels.get("users") != "separate" and node not in closed]
    lines = []
    if closed:
        lines.append(
            f"no task of {user} runs on {_names(closed)}: single-user nodes of other users. An agent started as root "
            f"takes tasks of all users and separates them; one with `--for {user}` takes tasks of {user}"
        )
    if mixed:
        lines.append(
            f"tasks of {user} and of other users are not separated on {_names(mixed)}: all run as one system user, "
            "and can read each other's files, secrets and output. Start the agent as root to separate them"
        )
    if not lines:
        lines.append(f"tasks of {user} run as their own system user on every node")
    return lines


def _names(nodes: list[Any]) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@token.command("list")
@calls_server
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens: whom they are for and when they expire. The tokens themselves are not shown."""
    from fairlead.wire import api as wire

    tokens = _request(wire.Tokens, "GET", "tokens").tokens
    if as_json:
        print_json(tokens)
        return
    rows = [
        (
            token.id,
            token.role,
            token.user,
            ",".join(token.groups),
            _admits(token),
            token.uses or "",
            ago(token.created),
            "never" if token.expires is None else f"in {ahead(token.expires)}",
            token.note,
        )
        for token in tokens
    ]
    print_table(("TOKEN", "ROLE", "USER", "GROUPS", "ADMITS", "USES", "CREATED", "EXPIRES", "NOTE"), rows)


def _admits(token: Any) -> str:
    """Return what a join token is restricted to, such as `node=box for=ann`."""
    bounds = (
        ("node", token.node),
        ("pool", token.pool),
        ("partition", token.partition),
        ("for", ",".join(token.users)),
    )
    return " ".join(f"{name}={value}" for name, value in bounds if value)


@token.command("revoke")
@calls_server
def revoke_token(
    name: Annotated[str, typer.Argument(help="Id of a token, as shown by `token list`.", metavar="TOKEN")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a token: it can no longer be used.

    Commands on the server's machine use the token `owner`, so revoking it needs a confirmation.
    """
    if name == OWNER and not yes:
        typer.confirm(
            f"Commands on the server's machine use {OWNER}. Revoke it, so that they fail until the server is started "
            "again?",
            abort=True,
        )
    _do("DELETE", f"tokens/{_part(name, 'name')}", as_json, f"{name} was revoked")


OWNER = "owner"
"""The token of the data directory."""

GROUPS = (node, queue, share, lane, partition_app, secret, token)
