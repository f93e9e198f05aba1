"""`fairlead node`: nodes, and the jobs that they are held for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import check_duration, pairs, seconds_of, wrong
from fairlead.cli.options import Common, Listed, LiveJobName
from fairlead.cli.output import Column, ago, ahead, amounts, labels_of, print_json, print_table
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

node = Group("node", "List, show, drain, enable and remove nodes.")

NodeState = Literal["up", "disconnected", "draining", "disabled", "lost"]
NodeName = Annotated[str, typer.Argument(help="Name of a node.", metavar="NODE", autocompletion=completion.nodes)]
Reason = Annotated[str, typer.Option(help="The reason, which `node list` shows. At most 200 characters.")]


@node.command("list")
def list_nodes(
    *,
    state: Annotated[NodeState | None, typer.Option(help="Only nodes in this state.")] = None,
    listed: Listed,
) -> None:
    """List nodes with their state, resources and use.

    A node is `disconnected` while its agent is not connected to the server. It gets no new tasks then, and is `lost`
    if its agent stays away.
    """
    with listed.client() as client:
        listed.show_list(lambda: list(client.nodes(state=state)), NODES)


def _state(node: wire.Node) -> str:
    """Return the state of a node with what an operator should know about it."""
    away = "" if node.disconnected is None else f"agent not connected for {ago(node.disconnected)}"
    left = "" if node.until is None else f"for {ahead(node.until)}"
    return ", ".join(filter(None, (node.state, left, away, node.reason, node.credential.removeprefix("valid"))))


def _held_for(node: wire.Node) -> str:
    """Return the jobs that a node is held for, as text; empty if there are none."""
    jobs = [f"job {job}" for job in node.held_for]
    if node.held_for_others:
        jobs.append(f"{node.held_for_others} of other users")
    return f"for {', '.join(jobs)}" if jobs else ""


def _key(node: wire.Node) -> str:
    """Return the state of a node's key, as text."""
    if node.credential != "valid" or node.credential_expires is None:
        return node.credential
    return f"valid for {ahead(node.credential_expires)}"


def _gpus(node: wire.Node) -> str:
    return " ".join(f"{used:g}" for used in node.devices)


NODES: tuple[Column[wire.Node], ...] = (
    Column("node", lambda node: node.name),
    Column("state", _state),
    Column("pool", lambda node: node.pool),
    Column("tasks", lambda node: node.tasks),
    Column("used", lambda node: amounts(node.used) or "-"),
    Column("has", lambda node: amounts(node.resources)),
    Column("labels", lambda node: labels_of(node.labels), False),
    Column("taints", lambda node: " ".join(node.taints), False),
    Column("users", lambda node: " ".join(node.users), False),
    Column("gpus", _gpus, False),
    Column("kept", _held_for, False),
    Column("held", lambda node: amounts(node.held), False),
    Column("manager", lambda node: node.manager, False),
    Column("reason", lambda node: node.reason, False),
)


@node.command("show")
def show_node(name: NodeName, common: Common) -> None:
    """Show a node: its state, resources, labels, taints and the state of its key."""
    from fairlead.wire import operations as op

    found = common.request(op.Node(node=name))
    facts = {
        "agent": "" if found.disconnected is None else f"not connected for {ago(found.disconnected)}",
        "reason": found.reason,
        "kept": _held_for(found),
        "held": amounts(found.held),
        "has": amounts(found.resources),
        "used": amounts(found.used),
        "gpus": _gpus(found),
        "pool": found.pool,
        "manager": found.manager,
        "labels": labels_of(found.labels),
        "taints": " ".join(found.taints),
        "key": _key(found),
        "users": " ".join(found.users),
    }
    first = f"node {found.name}: {found.state}, {found.tasks} tasks{', avoided' if found.avoided else ''}"
    common.show(found, [first, *(f"  {what:<8}{value}" for what, value in facts.items() if value)])


@node.command()
def drain(name: NodeName, *, reason: Reason = "", common: Common) -> None:
    """Let the running tasks of a node finish, and give it no new ones."""
    from fairlead.wire import operations as op

    common.change(op.MoveNode(node=name, action="drain", reason=reason), f"{name} drains")


SomeNode = Annotated[
    str, typer.Argument(help="Name of a node, or none with --label.", metavar="[NODE]", autocompletion=completion.nodes)
]
NodeLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        help="Nodes with this label, as key=value; may be repeated.",
        metavar="KEY=VALUE",
        autocompletion=completion.node_labels,
    ),
]


@node.command()
def disable(
    *,
    name: SomeNode = "",
    label: NodeLabels = None,
    lasts: Annotated[
        str, typer.Option("--for", help="Enable them again after this time, such as 2h.", metavar="TIME")
    ] = "",
    reason: Reason = "",
    common: Common,
) -> None:
    """Give a node no new tasks until `node enable`, also after its agent restarts. Running tasks go on.

    With --label, disable all nodes with these labels, also those that join during the time --for.
    """
    from fairlead.wire import operations as op

    labels = _named(name, label)
    check_duration(lasts or None, "--for")
    seconds = seconds_of(lasts) if lasts else None
    if lasts and not seconds:
        raise wrong("--for", f"{lasts} is no time; write one such as 2h or 90min")
    if not labels:
        move = op.MoveNode(node=name, action="disable", reason=reason, lasts=seconds or 0.0)
        return common.change(move, f"{name} is disabled{f' for {lasts}' if lasts else ''}")
    if not seconds:
        raise wrong("--for", "--label needs a time, such as --for 2h")
    document: Any = {"labels": labels, "lasts": lasts} | ({"reason": reason} if reason else {})
    return common.change(op.CloseNodes(document=document), "the nodes are disabled")


@node.command()
def enable(*, name: SomeNode = "", label: NodeLabels = None, common: Common) -> None:
    """Give a drained or disabled node new tasks again.

    With --label, enable the nodes that are disabled for a time by these labels.
    """
    from fairlead.wire import operations as op

    labels = _named(name, label)
    document: Any = {"labels": labels}
    if labels:
        common.change(op.OpenNodes(document=document), "the nodes are up")
    else:
        common.change(op.MoveNode(node=name, action="enable"), f"{name} is up")


def _named(name: str, labels: list[str] | None) -> dict[str, str]:
    """Return the labels of `--label`; empty if a node is named."""
    if bool(name) == bool(labels):
        raise typer.BadParameter("name a node, or its labels with --label")
    return pairs(labels, "--label")


CLOSURES: tuple[Column[wire.Closure], ...] = (
    Column("labels", lambda closure: labels_of(closure.labels)),
    Column("ends in", lambda closure: ahead(closure.until)),
    Column("reason", lambda closure: closure.reason),
)


@node.command()
def closed(common: Common) -> None:
    """List the labels by which nodes are disabled for a time."""
    from fairlead.wire import operations as op

    common.table(common.request(op.Closures()).closures, CLOSURES)


@node.command()
def remove(name: NodeName, common: Common) -> None:
    """Remove a node. Its running tasks count as lost at once.

    An agent that still runs joins again: stop it first, or revoke its key with `node revoke`.
    """
    from fairlead.wire import operations as op

    common.change(op.RemoveNode(node=name), f"{name} was removed")


@node.command()
def revoke(name: NodeName, common: Common) -> None:
    """Revoke the key of a node: its agent can no longer connect.

    Its tasks count as lost when its lease expires. A token of `fairlead token create --role join --node NODE` admits
    the node again.
    """
    from fairlead.wire import operations as op

    common.change(op.RevokeNode(node=name), f"{name} was revoked")


@node.command("held")
def list_holds(common: Common) -> None:
    """List nodes that are kept for a job.

    A node is held if the job has waited too long, promised if other tasks on it stop for the job, and ordered if a pool
    brings it for the job.
    """
    from fairlead.wire import operations as op

    kept = common.request(op.Holds())
    if common.as_json:
        print_json(kept)
        return
    rows: list[tuple[wire.Hold | wire.Promise, str, str]] = [(hold, "held", ahead(hold.until)) for hold in kept.holds]
    rows += [(promise, "ordered" if promise.ordered else "promised", "") for promise in kept.promises]
    print_table(
        ("JOB", "STAGE", "KIND", "TASKS", "NODES", "HELD", "SINCE", "ENDS IN", "ON"),
        [
            (
                entry.job,
                entry.stage,
                kind,
                entry.tasks,
                len(entry.nodes),
                amounts(_sums(entry.held.values())),
                ago(entry.since),
                ends,
                " ".join(entry.nodes[:10]) + (" …" if len(entry.nodes) > 10 else ""),
            )
            for entry, kind, ends in rows
        ],
    )


def _sums(vectors: Iterable[dict[str, int | float]]) -> dict[str, int | float]:
    sums: dict[str, int | float] = {}
    for vector in vectors:
        for name, amount in vector.items():
            sums[name] = sums.get(name, 0) + amount
    return sums


@node.command("release")
def release_hold(
    job: LiveJobName,
    *,
    stage: Annotated[str, typer.Argument(help="Name of a stage. By default all stages.", metavar="STAGE")] = "",
    common: Common,
) -> None:
    """Release the nodes that are held for a job, so that other jobs can use them."""
    from fairlead.wire import operations as op

    document: Any = {"job": job} | ({"stage": stage} if stage else {})
    common.change(op.ReleaseHold(document=document), f"the hold of {job} is released")
