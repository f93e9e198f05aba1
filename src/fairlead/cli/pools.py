"""Pools on the command line: how large they are, what is coming and why, and steering them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import AsJson, Partition, ask_as
from fairlead.cli.output import ago, amounts, asking, print_json, print_table, say

if TYPE_CHECKING:
    from fairlead.wire import api as wire

pool = typer.Typer(name="pool", help="Look at pools of nodes, and steer them.", no_args_is_help=True)

PoolName = Annotated[str, typer.Argument(help="The name of a pool.", metavar="POOL")]


@pool.command("list")
@asking
def list_pools(partition: Partition = "", as_json: AsJson = False) -> None:
    """List pools with how many nodes they have, would need and are getting."""
    with ask_as(partition) as client:
        found = client.pools()
    if as_json:
        print_json(found)
        return
    print_table(
        ("POOL", "STATE", "NODES", "AVAILABLE", "PENDING", "IDLE", "ORDERED", "DISABLED", "MAX", "ORPHANS"),
        [
            (
                each.name,
                _state(each),
                *_sizes(each.use),
                "" if each.max is None else each.max,
                len(each.orphans),
            )
            for each in found
        ],
    )


@pool.command("show")
@asking
def show_pool(name: PoolName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show a pool: its size, why it grew, what is coming and for whom, and machines that nobody knows."""
    with ask_as(partition) as client:
        found = client.pool(name)
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        say(line)


@pool.command()
@asking
def pause(name: PoolName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Let a pool neither grow nor shrink by itself."""
    with ask_as(partition) as client:
        _say(client.pause_pool(name), f"{name} is paused", as_json)


@pool.command()
@asking
def resume(name: PoolName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Let a pool go on, at once, also if an order has just failed."""
    with ask_as(partition) as client:
        _say(client.resume_pool(name), f"{name} goes on", as_json)


@pool.command()
@asking
def scale(
    name: PoolName,
    nodes: Annotated[int, typer.Argument(help="How many nodes it should have.", min=0)],
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Order nodes, or give back idle ones, until a pool has so many. It goes on by itself from there."""
    with ask_as(partition) as client:
        _say(client.scale_pool(name, nodes), f"{name}: {nodes} nodes", as_json)


# -- inside ------------------------------------------------------------------------------------------------------


def _say(note: str, said: str, as_json: bool) -> None:
    if as_json:
        print_json({"note": note})
    else:
        say(note or said)


def _state(pool: wire.Pool) -> str:
    if pool.paused:
        return "paused"
    if pool.paused_until is not None or pool.problem:
        return "problem"
    return "ready" if pool.use is not None else "not ready"


def _sizes(use: wire.PoolUse | None) -> tuple[object, ...]:
    if use is None:
        return ("",) * 6
    return (use.total, use.available, use.pending, use.idle, use.ordered, use.disabled)


def _lines(pool: wire.Pool) -> list[str]:
    """All that there is to say of a pool, for people."""
    most = "" if pool.max is None else f", at most {pool.max}"
    lines = [f"{pool.name}: {_state(pool)}, brought by {pool.provider or 'nobody'}"]
    if pool.problem:
        lines.append(f"problem: {pool.problem}")
    lines.append(f"each node has {amounts(pool.resources)}; at least {pool.min}{most}, cost {pool.cost}")
    if pool.use is not None:
        use = pool.use
        lines.append(
            f"nodes: {use.total}, {use.available} available, {use.pending} pending, {use.idle} idle, "
            f"{use.ordered} ordered, {use.disabled} disabled"
        )
    for what, when in (("grew", pool.grew), ("shrank", pool.shrank)):
        if when is not None:
            lines.append(f"{what} {ago(when)} ago")
    for order in pool.orders:
        jobs = ", ".join(f"{each.job} {each.stage} ({each.tasks} tasks)" for each in order.jobs)
        whom = f" for {jobs}" if jobs else f" for {order.tasks} tasks" if order.tasks else ""
        lines.append(f"order {order.order}, {ago(order.since)} ago by {order.cause}{whom}: {', '.join(order.nodes)}")
    if pool.leaving:
        lines.append(f"leaving: {', '.join(pool.leaving)}")
    for orphan in pool.orphans:
        lines.append(f"orphan: {orphan.name} {orphan.note}".rstrip())
    return lines
