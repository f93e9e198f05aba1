"""`fairlead pool`: list and show pools of machines, pause, resume and scale them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import completion
from fairlead.cli.options import Common
from fairlead.cli.output import Column, ago, amounts
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

pool = Group("pool", "Show, pause, resume and scale pools of machines.")

PoolName = Annotated[str, typer.Argument(help="Name of a pool.", metavar="POOL", autocompletion=completion.pools)]


@pool.command("list")
def list_pools(common: Common) -> None:
    """List pools with the numbers of their nodes.

    AVAILABLE is the number of empty nodes that take tasks, PENDING the number of nodes that waiting tasks need, and
    IDLE the difference: it is below 0 if nodes are missing. ORDERED nodes have not joined yet. ORPHANS are machines of
    the provider that belong to no node and no order.
    """
    common.table(common.request(lambda client: client.pools()), POOLS)


@pool.command("show")
def show_pool(name: PoolName, common: Common) -> None:
    """Show a pool with its nodes, its orders and the jobs that each order is for."""
    found = common.request(lambda client: client.pool(name))
    common.show(found, _lines(found))


@pool.command()
def pause(name: PoolName, common: Common) -> None:
    """Stop a pool from growing and shrinking by itself, until `pool resume`."""
    common.change(lambda client: client.pause_pool(name), f"{name} is paused")


@pool.command()
def resume(name: PoolName, common: Common) -> None:
    """Let a paused pool grow and shrink again. It may order nodes at once, even after an order failed."""
    common.change(lambda client: client.resume_pool(name), f"{name} is resumed")


@pool.command()
def scale(
    name: PoolName,
    nodes: Annotated[int, typer.Argument(help="Number of nodes that the pool should have.", metavar="NODES", min=0)],
    common: Common,
) -> None:
    """Order nodes, or give back idle nodes, until a pool has this size.

    The pool still grows and shrinks with its waiting tasks afterwards. `pool pause` prevents that.
    """
    common.change(lambda client: client.scale_pool(name, nodes), f"{name}: {nodes} nodes")


def _state(pool: wire.Pool) -> str:
    if pool.paused:
        return "paused"
    if pool.paused_until is not None or pool.problem:
        return "problem"
    return "ready" if pool.use is not None else "not ready"


def _size(of: str) -> Callable[[wire.Pool], object]:
    return lambda pool: "" if pool.use is None else getattr(pool.use, of)


POOLS: tuple[Column[wire.Pool], ...] = (
    Column("pool", lambda pool: pool.name),
    Column("state", _state),
    Column("nodes", _size("total")),
    Column("available", _size("available")),
    Column("pending", _size("pending")),
    Column("idle", _size("idle")),
    Column("ordered", _size("ordered")),
    Column("disabled", _size("disabled")),
    Column("max", lambda pool: "" if pool.max is None else pool.max),
    Column("orphans", lambda pool: len(pool.orphans)),
)


def _lines(pool: wire.Pool) -> list[str]:
    """Return the description of a pool for people, as lines."""
    most = "" if pool.max is None else f", at most {pool.max}"
    lines = [f"{pool.name}: {_state(pool)}, provider {pool.provider or 'none'}"]
    if pool.problem:
        lines.append(f"problem: {pool.problem}")
    free = f", keeps {amounts(pool.min_free)} free" if pool.min_free else ""
    lines.append(f"each node has {amounts(pool.resources)}; at least {pool.min}{most}, cost {pool.cost}{free}")
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
        jobs = ", ".join(f"{job.job} {job.stage} ({job.tasks} tasks)" for job in order.jobs)
        purpose = f" for {jobs}" if jobs else f" for {order.tasks} tasks" if order.tasks else ""
        lines.append(f"order {order.order}, {ago(order.since)} ago by {order.cause}{purpose}: {', '.join(order.nodes)}")
    if pool.leaving:
        lines.append(f"leaving: {', '.join(pool.leaving)}")
    for orphan in pool.orphans:
        lines.append(f"orphan: {orphan.name} {orphan.note}".rstrip())
    return lines
