"""Pools on the command line: list and show them, pause, resume and scale them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import completion
from fairlead.cli.options import AsJson, Partition, open_client
from fairlead.cli.output import ago, amounts, calls_server, print_json, print_table, print_text

if TYPE_CHECKING:
    from fairlead.wire import api as wire

pool = typer.Typer(name="pool", help="Show, pause, resume and scale pools of machines.", no_args_is_help=True)

PoolName = Annotated[str, typer.Argument(help="Name of a pool.", metavar="POOL", autocompletion=completion.pools)]


@pool.command("list")
@calls_server
def list_pools(partition: Partition = "", as_json: AsJson = False) -> None:
    """List pools with the numbers of their nodes.

    AVAILABLE nodes are empty and take tasks, waiting tasks need PENDING nodes, and IDLE is the difference: below 0 if
    nodes are missing. ORDERED nodes are on their way. ORPHANS are machines without a node or an order.
    """
    with open_client(partition) as client:
        pools = client.pools()
    if as_json:
        print_json(pools)
        return
    print_table(
        ("POOL", "STATE", "NODES", "AVAILABLE", "PENDING", "IDLE", "ORDERED", "DISABLED", "MAX", "ORPHANS"),
        [
            (
                pool.name,
                _state(pool),
                *_sizes(pool.use),
                "" if pool.max is None else pool.max,
                len(pool.orphans),
            )
            for pool in pools
        ],
    )


@pool.command("show")
@calls_server
def show_pool(name: PoolName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show a pool: its nodes, its orders and the jobs that they are for."""
    with open_client(partition) as client:
        pool = client.pool(name)
    if as_json:
        print_json(pool)
        return
    for line in _lines(pool):
        print_text(line)


@pool.command()
@calls_server
def pause(name: PoolName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Stop a pool from growing and shrinking by itself, until `pool resume`."""
    with open_client(partition) as client:
        _print_note(client.pause_pool(name), f"{name} is paused", as_json)


@pool.command()
@calls_server
def resume(name: PoolName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Let a paused pool grow and shrink again, and order at once even after a failed order."""
    with open_client(partition) as client:
        _print_note(client.resume_pool(name), f"{name} is resumed", as_json)


@pool.command()
@calls_server
def scale(
    name: PoolName,
    nodes: Annotated[int, typer.Argument(help="Number of nodes that the pool should have.", metavar="NODES", min=0)],
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Order nodes, or give back idle ones, until a pool has this size. Demand changes it later as usual."""
    with open_client(partition) as client:
        _print_note(client.scale_pool(name, nodes), f"{name}: {nodes} nodes", as_json)


# -- inside ------------------------------------------------------------------------------------------------------


def _print_note(note: str, default: str, as_json: bool) -> None:
    if as_json:
        print_json({"note": note})
    else:
        print_text(note or default)


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
    """Return the description of a pool for people, as lines."""
    most = "" if pool.max is None else f", at most {pool.max}"
    lines = [f"{pool.name}: {_state(pool)}, provider {pool.provider or 'none'}"]
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
        jobs = ", ".join(f"{job.job} {job.stage} ({job.tasks} tasks)" for job in order.jobs)
        purpose = f" for {jobs}" if jobs else f" for {order.tasks} tasks" if order.tasks else ""
        lines.append(f"order {order.order}, {ago(order.since)} ago by {order.cause}{purpose}: {', '.join(order.nodes)}")
    if pool.leaving:
        lines.append(f"leaving: {', '.join(pool.leaving)}")
    for orphan in pool.orphans:
        lines.append(f"orphan: {orphan.name} {orphan.note}".rstrip())
    return lines
