"""The cluster on the command line: nodes, queues, lanes, partitions, readiness, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.options import AsJson, Partition, ask_as
from fairlead.cli.output import ago, ahead, amounts, asking, print_json, print_list, print_table, say
from fairlead.cli.serving import rotate_key

node = typer.Typer(name="node", help="Look at nodes and move them.", no_args_is_help=True)
queue = typer.Typer(name="queue", help="Look at queues, stop and start them.", no_args_is_help=True)
lane = typer.Typer(name="lane", help="Look at what waits, and move it.", no_args_is_help=True)
hold = typer.Typer(name="hold", help="Look at held nodes, and release them.", no_args_is_help=True)
partition_app = typer.Typer(name="partition", help="Add, change and remove partitions.", no_args_is_help=True)
share = typer.Typer(name="share", help="Look at shares, patterns and rebalance, and set them.", no_args_is_help=True)
secret = typer.Typer(name="secret", help="Keep secrets for jobs to name.", no_args_is_help=True)
token = typer.Typer(name="token", help="Create, list and revoke tokens.", no_args_is_help=True)

NodeName = Annotated[str, typer.Argument(help="The name of a node.", metavar="NODE")]
QueuePath = Annotated[str, typer.Argument(help="The path of a queue, such as root.ml.", metavar="QUEUE")]
StageName = Annotated[str, typer.Argument(help="The name of a stage.", metavar="STAGE")]
JobName = Annotated[str, typer.Argument(help="The id of a job.", metavar="JOB")]
PartitionName = Annotated[str, typer.Argument(help="The name of a partition.", metavar="PARTITION")]


def _ask(form: Any, method: str, path: str, document: Any = None, **parameters: Any) -> Any:
    from fairlead.client.calls import API, Call

    with ask_as() as client:
        return client.ask(Call(form, method, f"{API}/{path}", document, **parameters))


def _do(method: str, path: str, as_json: bool, said: str, document: Any = None, **parameters: Any) -> None:
    """Have something done, and say so."""
    from fairlead.wire import api as wire

    done = _ask(wire.Done, method, path, document, **parameters)
    if as_json:
        print_json(done)
    else:
        say(done.note or said)


# -- nodes -------------------------------------------------------------------------------------------------------


@node.command("list")
@asking
def list_nodes(
    state: Annotated[str, typer.Option(help="Only nodes in this state.")] = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List nodes with what they have and use."""
    with ask_as(partition) as client:
        found = list(client.nodes(state=state))
    print_list(
        found,
        as_json,
        ("NODE", "STATE", "POOL", "TASKS", "USED", "HAS"),
        lambda each: (
            each.name,
            each.state if each.credential in ("", "valid") else f"{each.state}, {each.credential}",
            each.pool,
            each.tasks,
            amounts(each.used) or "-",
            amounts(each.resources),
        ),
    )


@node.command("show")
@asking
def show_node(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show all that is known of a node."""
    from fairlead.wire import api as wire

    found: wire.Node = _ask(wire.Node, "GET", f"nodes/{name}", partition=partition)
    if as_json:
        print_json(found)
        return
    say(f"node {found.name}: {found.state}, {found.tasks} tasks{', avoided' if found.avoided else ''}")
    for what, value in (
        ("has", amounts(found.resources)),
        ("used", amounts(found.used)),
        ("gpus", " ".join(f"{used:g}" for used in found.devices)),
        ("pool", found.pool),
        ("manager", found.manager),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(found.labels.items()))),
        ("taints", " ".join(found.taints)),
        ("key", _credential(found.credential, found.credential_expires)),
        ("users", " ".join(found.users)),
    ):
        if value:
            say(f"  {what:<8}{value}")


@node.command()
@asking
def drain(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Give a node no new work; what runs there ends by itself."""
    _do("POST", f"nodes/{name}/drain", as_json, f"{name} drains", partition=partition)


@node.command()
@asking
def disable(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Give a node no new work until it is enabled again."""
    _do("POST", f"nodes/{name}/disable", as_json, f"{name} is disabled", partition=partition)


@node.command()
@asking
def enable(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Give a node work again."""
    _do("POST", f"nodes/{name}/enable", as_json, f"{name} is up", partition=partition)


@node.command()
@asking
def remove(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Forget a node; what runs there is lost at once."""
    _do("DELETE", f"nodes/{name}", as_json, f"{name} was removed", partition=partition)


@node.command()
@asking
def revoke(name: NodeName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Let a node in no more: its connection ends, and what runs there is lost when its lease is over.

    A token of `fairlead token create --role join --node NODE` admits it again.
    """
    _do("DELETE", f"nodes/{name}/credential", as_json, f"{name} was revoked", partition=partition)


def _credential(standing: str, expires: float | None) -> str:
    return standing if standing != "valid" or expires is None else f"valid for {ahead(expires)}"


# -- queues and lanes --------------------------------------------------------------------------------------------


@queue.command("list")
@asking
def list_queues(partition: Partition = "", as_json: AsJson = False) -> None:
    """List queues with their share, use and what waits."""
    with ask_as(partition) as client:
        found = client.queues()
    print_list(
        found,
        as_json,
        ("QUEUE", "STATE", "SHARE", "USED", "LIMIT", "RUNNING", "WAITING"),
        lambda each: (
            "  " * each.path.count(".") + each.path.rpartition(".")[2],
            each.state,
            "" if each.share is None else f"{each.share}%",
            amounts(each.used) or "-",
            "" if each.limit is None else amounts(each.limit),
            each.running,
            each.asks,
        ),
    )


@queue.command()
@asking
def stop(path: QueuePath, partition: Partition = "", as_json: AsJson = False) -> None:
    """Stop a queue: it accepts and starts nothing, and what runs goes on."""
    _do("POST", f"queues/{path}/stop", as_json, f"{path} is stopped", partition=partition)


@queue.command()
@asking
def start(path: QueuePath, partition: Partition = "", as_json: AsJson = False) -> None:
    """Start a queue that was stopped."""
    _do("POST", f"queues/{path}/start", as_json, f"{path} is active", partition=partition)


@hold.command("list")
@asking
def list_holds(partition: Partition = "", as_json: AsJson = False) -> None:
    """List nodes that are held for jobs that waited too long."""
    with ask_as(partition) as client:
        found = client.holds()
    print_list(
        found,
        as_json,
        ("JOB", "STAGE", "TASKS", "NODES", "HELD", "ENDS IN", "ON"),
        lambda each: (
            each.job,
            each.stage,
            each.tasks,
            len(each.nodes),
            ago(each.since),
            ahead(each.until),
            " ".join(each.nodes[:10]) + (" …" if len(each.nodes) > 10 else ""),
        ),
    )


@hold.command("release")
@asking
def release_hold(
    job: JobName,
    stage: Annotated[str, typer.Argument(help="The name of a stage; all of them by default.", metavar="STAGE")] = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Open the nodes that are held for a job to other work."""
    document = {"job": job} | ({"stage": stage} if stage else {})
    _do("POST", "holds/release", as_json, f"the hold of {job} is released", document, partition=partition)


@lane.command("list")
@asking
def list_lanes(partition: Partition = "", as_json: AsJson = False) -> None:
    """List lanes, by queue and shape, with what waits in them."""
    from fairlead.wire import api as wire

    found = _ask(wire.Lanes, "GET", "lanes", partition=partition, first=1).lanes
    print_list(
        found,
        as_json,
        ("QUEUE", "SHAPE", "ASKS", "TASKS", "HEAD", "WAITS"),
        lambda each: (
            each.queue,
            each.shape,
            each.asks,
            each.tasks,
            f"{each.first[0].job} {each.first[0].stage}" if each.first else "",
            ago(each.first[0].waiting_since) if each.first else "",
        ),
    )


@lane.command()
@asking
def front(job: JobName, stage: StageName = "main", partition: Partition = "", as_json: AsJson = False) -> None:
    """Bring what a stage waits for to the front of its lane."""
    document = {"job": job, "stage": stage}
    _do("POST", "lanes/front", as_json, f"{job} {stage} is at the front", document, partition=partition)


@lane.command()
@asking
def cancel(job: JobName, stage: StageName = "main", partition: Partition = "", as_json: AsJson = False) -> None:
    """Give up what a stage waits for."""
    document = {"job": job, "stage": stage}
    _do("POST", "lanes/cancel", as_json, f"{job} {stage} waits no longer", document, partition=partition)


@lane.command()
@asking
def reset(
    path: QueuePath,
    job: JobName,
    give_up: Annotated[bool, typer.Option("--cancel", help="Give the head up instead.")] = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Send the head of a stuck lane, if it is this job's, to the tail."""
    document = {"queue": path, "job": job, "cancel": give_up}
    _do("POST", "lanes/reset", as_json, f"{job} is at the tail", document, partition=partition)


# -- partitions, readiness ---------------------------------------------------------------------------------------


@partition_app.command("list")
@asking
def list_partitions(as_json: AsJson = False) -> None:
    """List partitions, and whether they are ready."""
    from fairlead.wire import api as wire

    found: list[wire.Partition] = _ask(wire.Partitions, "GET", "partitions").partitions

    def is_ready(each: wire.Partition) -> str:
        return "yes" if each.ready else f"waits for {', '.join(each.waiting_for)}"

    columns = ("PARTITION", "READY", "NODES", "JOBS")
    print_list(found, as_json, columns, lambda each: (each.name, is_ready(each), each.nodes, each.jobs))


@partition_app.command("set")
@asking
def set_partition(
    name: PartitionName,
    file: Annotated[
        Path | None, typer.Argument(help="Its settings, as below partitions.NAME of a configuration.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a partition, or give it other settings."""
    from fairlead.cli.config import document_of, show_differences
    from fairlead.wire import api as wire

    done = _ask(wire.Applied, "PUT", f"partitions/{name}", {} if file is None else document_of(file))
    show_differences(done, as_json)


@partition_app.command("remove")
@asking
def remove_partition(
    name: PartitionName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a partition: everything in it is released at once."""
    from fairlead.cli.config import show_differences
    from fairlead.wire import api as wire

    if not yes:
        typer.confirm(f"Kill all jobs of {name} and forget its nodes?", abort=True)
    show_differences(_ask(wire.Applied, "DELETE", f"partitions/{name}"), as_json)


@asking
def ready(name: Annotated[str, typer.Argument(metavar="PARTITION")] = "default", as_json: AsJson = False) -> None:
    """Mark a partition ready: everybody who should report after a start has, so place work now."""
    _do("POST", f"partitions/{name}/ready", as_json, f"{name} is ready")


# -- shares ------------------------------------------------------------------------------------------------------


@share.command("list")
@asking
def list_shares(partition: Partition = "", as_json: AsJson = False) -> None:
    """Show how queues divide the partition, who reaches them, and when loans are taken back."""
    from fairlead.wire import api as wire

    found = _ask(wire.Shares, "GET", "shares", partition=partition)
    if as_json:
        print_json(found)
        return
    with ask_as(partition) as client:
        figures = {each.path: each for each in client.queues()}
    rows = [
        (
            path,
            "" if percent is None else percent,
            f"{figures[path].entitlement_percent:.1f}%",
            f"{figures[path].use_percent:.1f}%",
            f"{figures[path].loan_percent:.1f}%",
        )
        for path, percent in found.shares.items()
        if path in figures
    ]
    print_table(("QUEUE", "SHARE", "ENTITLED", "USES", "ON LOAN"), rows)
    for each in found.requestors:
        say(f"users that match {each.match!r} go to {each.queue}")
    if found.rebalance_threshold:
        typer.echo(f"rebalance when {found.rebalance_threshold}% apart for {found.rebalance_after:g} s")


@share.command("set")
@asking
def set_shares(
    path: QueuePath,
    percent: Annotated[int, typer.Argument(help="Its share among its siblings.", min=0)],
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Give a queue another share."""
    _set_shares({"shares": {path: percent}}, partition, as_json)


@share.command("match")
@asking
def set_patterns(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(help="PATTERN=QUEUE, the first that matches a user counts.", metavar="PATTERN…"),
    ] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Set the patterns by which users reach queues, all of them at once."""
    requestors = []
    for each in patterns or ():
        match, equals, path = each.rpartition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not PATTERN=QUEUE", param_hint="PATTERN")
        requestors.append({"match": match, "queue": path})
    _set_shares({"requestors": requestors}, partition, as_json)


@share.command()
@asking
def rebalance(
    threshold: Annotated[int | None, typer.Option(help="How far queues may be apart, in percent; 0 is off.")] = None,
    after: Annotated[str | None, typer.Option(help="For how long, such as 4min.")] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Set when loans are taken back."""
    given = {"rebalance_threshold": threshold, "rebalance_after": after}
    _set_shares({key: value for key, value in given.items() if value is not None}, partition, as_json)


def _set_shares(document: dict[str, Any], partition: str, as_json: bool) -> None:
    from fairlead.cli.config import show_differences
    from fairlead.wire import api as wire

    show_differences(_ask(wire.Applied, "PUT", "shares", document, partition=partition), as_json)


# -- secrets -----------------------------------------------------------------------------------------------------

SecretName = Annotated[str, typer.Argument(help="The name of a secret.", metavar="SECRET")]


@secret.command("list")
@asking
def list_secrets(as_json: AsJson = False) -> None:
    """List the names of your secrets."""
    from fairlead.wire import api as wire

    found = _ask(wire.Secrets, "GET", "secrets")
    if as_json:
        print_json(found)
        return
    for name in found.secrets:
        typer.echo(name)


@secret.command("set")
@asking
def set_secret(name: SecretName, as_json: AsJson = False) -> None:
    """Set a secret to what comes on standard input, or is typed: at most 64 KiB."""
    import sys

    value = typer.prompt(name, hide_input=True) if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    _do("PUT", f"secrets/{name}", as_json, f"{name} is set", {"value": value})


@secret.command("remove")
@asking
def remove_secret(name: SecretName, as_json: AsJson = False) -> None:
    """Remove a secret."""
    _do("DELETE", f"secrets/{name}", as_json, f"{name} was removed")


secret.command("rotate-key")(rotate_key)


# -- tokens ------------------------------------------------------------------------------------------------------


@token.command("create")
@asking
def create_token(
    role: Annotated[str, typer.Option(help="user, operator or admin; join for a machine that becomes a node.")],
    user: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group of the user; may be repeated.")] = None,
    node_name: Annotated[str | None, typer.Option("--node", help="With join: the only node that it is for.")] = None,
    pool: Annotated[str | None, typer.Option(help="With join: the only pool that it is for.")] = None,
    partition: Annotated[str | None, typer.Option(help="With join: the only partition that it is for.")] = None,
    for_user: Annotated[
        list[str] | None,
        typer.Option("--for", help="With join: the only user whose tasks the node may take; may be repeated."),
    ] = None,
    uses: Annotated[int | None, typer.Option(help="With join: how many machines it admits; else 1.")] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires_in: Annotated[
        str | None, typer.Option(help="How long it is valid, such as 30d; else for ever, with join 1h.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, for the only time."""
    from fairlead.wire import api as wire

    given = {
        "user": user,
        "groups": group,
        "partition": partition,
        "pool": pool,
        "node": node_name,
        "users": for_user,
        "uses": uses,
        "expires_in": expires_in,
    }
    document = {"role": role, "note": note} | {key: value for key, value in given.items() if value is not None}
    made = _ask(wire.NewToken, "POST", "tokens", document)
    if as_json:
        print_json(made)
        return
    typer.echo(made.secret)
    if user is not None:
        for line in _separation(user):
            typer.echo(f"fairlead: {line}", err=True)


def _separation(user: str) -> list[str]:
    """What separates the tasks of a user from those of others, node by node; nothing while there is only one user."""
    from fairlead.wire import api as wire

    others = {each.user for each in _ask(wire.Tokens, "GET", "tokens").tokens if each.role != "join"} - {user}
    with ask_as() as client:
        nodes = [each for each in client.nodes() if not each.manager]
    if not others or not nodes:
        return []
    closed = [each for each in nodes if each.users and user not in each.users]
    mixed = [each for each in nodes if each.labels.get("users") != "separate" and each not in closed]
    said = []
    if closed:
        said.append(
            f"no task of {user} runs on {_names(closed)}: single-user nodes of others. An agent started as root takes "
            f"tasks of all users and keeps them apart; one with `--for {user}` takes those of {user}"
        )
    if mixed:
        said.append(
            f"nothing separates tasks of {user} from those of others on {_names(mixed)}: all run as one system user, "
            "and can read each other's files, secrets and output. Start the agent as root to separate them"
        )
    if not said:
        said.append(f"tasks of {user} run as their own system user on every node")
    return said


def _names(nodes: list[Any]) -> str:
    names = [each.name for each in nodes]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@token.command("list")
@asking
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens, without their secrets."""
    from fairlead.wire import api as wire

    found = _ask(wire.Tokens, "GET", "tokens").tokens
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            each.role,
            each.user,
            ",".join(each.groups),
            each.node,
            each.uses or "",
            ago(each.created),
            "" if each.expires is None else ahead(each.expires),
            each.note,
        )
        for each in found
    ]
    print_table(("TOKEN", "ROLE", "USER", "GROUPS", "NODE", "USES", "CREATED", "EXPIRES", "NOTE"), rows)


@token.command("revoke")
@asking
def revoke_token(
    name: Annotated[str, typer.Argument(help="The id of a token, from the list.", metavar="TOKEN")],
    as_json: AsJson = False,
) -> None:
    """Revoke a token: requests with it are refused, and what is being read with it ends."""
    _do("DELETE", f"tokens/{name}", as_json, f"{name} was revoked")


GROUPS = (node, queue, share, lane, hold, partition_app, secret, token)
