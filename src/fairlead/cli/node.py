"""`fairlead node`: list and change nodes, and list the nodes that are held for jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import check_duration, pairs, seconds_of, seconds_until, wrong
from fairlead.cli.options import Common, Listed, LiveJobName
from fairlead.cli.output import Column, ago, ahead, amounts, labels_of, lasted, print_json, print_table
from fairlead.cli.typer_commands import Group, option

if TYPE_CHECKING:
    from fairlead.wire import api as wire

node = Group("node", "List, show, drain, enable and remove nodes.")

NodeState = Literal["up", "disconnected", "draining", "disabled", "lost"]
NodeName = Annotated[str, typer.Argument(help="Name of a node.", metavar="NODE", autocompletion=completion.nodes)]
Reason = Annotated[str, typer.Option(help="Reason that `node list` shows; at most 200 characters.")]


@node.command("list")
def list_nodes(
    *,
    state: Annotated[NodeState | None, typer.Option(help="Only nodes in this state.")] = None,
    listed: Listed,
) -> None:
    """List nodes with their state, resources and use.

    A node is `disconnected` while its agent is not connected to the server. It gets no new tasks then. It is `lost` if
    its agent does not connect again within the time `lease` of the configuration.
    """
    with listed.client() as client:
        listed.show_list(lambda: list(client.nodes(state=state)), NODES)


def _state(node: wire.Node) -> str:
    """Return the state of a node with its details, such as `disabled, for 2h, new disk`."""
    away = "" if node.disconnected is None else f"agent not connected for {ago(node.disconnected)}"
    left = "" if node.until is None else f"for {lasted(node.until - (node.closes or time.time()))}"
    begin = "" if node.closes is None else f"in {ahead(node.closes)}"
    return ", ".join(filter(None, (node.state, begin, left, away, node.reason, node.credential.removeprefix("valid"))))


def _held_for(node: wire.Node) -> str:
    """Return the jobs that a node is held for, such as `for job 7, 2 of other users`. Empty if there are none."""
    jobs = [f"job {job}" for job in node.held_for]
    if node.held_for_others:
        jobs.append(f"{node.held_for_others} of other users")
    return f"for {', '.join(jobs)}" if jobs else ""


def _key(node: wire.Node) -> str:
    """Return the state of a node's key, such as `valid for 30d`."""
    if node.credential != "valid" or node.credential_expires is None:
        return node.credential
    return f"valid for {ahead(node.credential_expires)}"


def _gpus(node: wire.Node) -> str:
    return ", ".join(
        f"{index}: {'free' if used == 0 else 'in use' if used == 1 else f'{used:.0%} in use'}"
        for index, used in enumerate(node.devices)
    )


NODES: tuple[Column[wire.Node], ...] = (
    Column("node", lambda node: node.name),
    Column("state", _state),
    Column("pool", lambda node: node.pool),
    Column("tasks", lambda node: node.tasks),
    Column("used", lambda node: amounts(node.used) or "-"),
    Column("has", lambda node: amounts(node.resources)),
    Column("version", lambda node: node.labels.get("version", "-")),
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
    found = common.request(lambda client: client.node(name))
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
def drain(
    name: NodeName,
    *,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            help="Drain the node from this time on, such as 2h or 2026-11-30T18:00. Until then, it takes tasks "
            "whose time limit ends before.",
            metavar="TIME",
        ),
    ] = "",
    lasts: Annotated[
        str, typer.Option("--for", help="Enable the node again after this time, such as 2h.", metavar="TIME")
    ] = "",
    reason: Reason = "",
    common: Common,
) -> None:
    """Drain a node: it gets no new tasks, and its running tasks finish.

    For maintenance: fairlead node drain n1 --from 2026-11-30T18:00 --for 4h --reason firmware
    """
    delay, seconds = seconds_until(begin, "--from"), _seconds(lasts)
    done = f"{name} drains{f' from {begin} on' if begin else ''}{f' for {lasts}' if lasts else ''}"
    common.change(lambda client: client.move_node(name, "drain", reason, seconds, delay), done)


def _seconds(lasts: str) -> float:
    """Return the seconds of `--for`; 0 if it is not given."""
    check_duration(lasts or None, "--for")
    seconds = seconds_of(lasts) if lasts else 0.0
    if lasts and not seconds:
        raise wrong("--for", f"{lasts} is not a duration; write one such as 2h or 90min")
    return seconds or 0.0


SomeNode = Annotated[
    str, typer.Argument(help="Name of a node, or none with --label.", metavar="[NODE]", autocompletion=completion.nodes)
]
NodeLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        help="Select nodes with this label, as key=value; may be repeated.",
        metavar="KEY=VALUE",
        autocompletion=completion.node_labels,
    ),
]


class DisableOptions(Common):
    name: SomeNode = ""
    label: NodeLabels = None
    lasts: str = option("Enable the node again after this time, such as 2h.", "--for", metavar="TIME")
    reason: Reason = ""


@node.command()
def disable(options: DisableOptions) -> None:
    """Give a node no new tasks until `node enable`, also after its agent restarts. Running tasks continue.

    With --label, disable all nodes with these labels, also nodes that join during the time --for.
    """
    name, lasts, reason = options.name, options.lasts, options.reason
    labels = _named(name, options.label)
    seconds = _seconds(lasts)
    if not labels:
        done = f"{name} is disabled{f' for {lasts}' if lasts else ''}"
        options.change(lambda client: client.move_node(name, "disable", reason, seconds), done)
    elif not seconds:
        raise wrong("--for", "--label needs a time, such as --for 2h")
    else:
        options.change(lambda client: client.close_nodes(labels, lasts, reason), "the nodes are disabled")


@node.command()
def enable(*, name: SomeNode = "", label: NodeLabels = None, common: Common) -> None:
    """Let a drained or disabled node take new tasks again.

    With --label, enable the nodes that `node disable --label` with the same labels has disabled.
    """
    labels = _named(name, label)
    if labels:
        common.change(lambda client: client.open_nodes(labels), "the nodes are up")
    else:
        common.change(lambda client: client.move_node(name, "enable"), f"{name} is up")


def _named(name: str, labels: list[str] | None) -> dict[str, str]:
    """Return the labels of `--label`; empty if a node is named. Refuse both at once, and neither."""
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
    """List the labels of `node disable --label` that are in force, and when each ends."""
    common.table(common.request(lambda client: client.closures()), CLOSURES)


@node.command()
def remove(name: NodeName, common: Common) -> None:
    """Remove a node. Its running tasks count as lost at once.

    If its agent still runs, the node joins again. To prevent that, stop the agent first, or use `node revoke`.
    """
    common.change(lambda client: client.remove_node(name), f"{name} was removed")


@node.command()
def revoke(name: NodeName, common: Common) -> None:
    """Revoke the key of a node: its agent can no longer connect.

    Its tasks count as lost after the time `lease` of the configuration. To admit the node again, give its agent a
    new token of `fairlead token create --role join --node NODE`.
    """
    common.change(lambda client: client.revoke_node(name), f"the key of {name} was revoked")


@node.command("held")
def list_holds(common: Common) -> None:
    """List nodes that are reserved for a waiting job.

    KIND says why: a node is held because the job has waited too long, set aside because loans return there to the
    queue of the job, promised because other tasks on it stop for the job, or ordered from a pool for the job.
    """
    from fairlead.wire import operations as op

    kept = common.request(lambda client: client.send(op.Holds()))
    if common.as_json:
        print_json(kept)
        return
    rows: list[tuple[wire.Hold | wire.Promise, str, str]] = [
        (hold, "set aside", "") if hold.until is None else (hold, "held", ahead(hold.until)) for hold in kept.holds
    ]
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
    """Release the nodes that are held for a waiting job, so that other jobs can use them."""
    common.change(lambda client: client.release_hold(job, stage), f"the hold of {job} is released")
