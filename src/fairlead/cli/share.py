"""`fairlead share`: the shares of queues, and when borrowed capacity goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.config import show_differences
from fairlead.cli.option_values import wrong
from fairlead.cli.options import Common, QueuePath
from fairlead.cli.output import ahead, print_json, print_table, print_text
from fairlead.cli.typer_commands import Group, option

if TYPE_CHECKING:
    from fairlead.wire.api import Loan

share = Group("share", "Show and set the shares of queues.")


@share.command("list")
def list_shares(common: Common) -> None:
    """Show the shares of queues and their use.

    ENTITLED is the part of the cluster that belongs to a queue by its share, USES the part that its tasks have, ON LOAN
    the part that it uses beyond its entitlement, PAST its average use. RETURNS tells when the loan is back if no other
    task of the queue starts, by estimates and time limits. Below the table are the patterns that choose
    the queue of a user, and when a queue gets back capacity that other queues have borrowed.
    """
    shares = common.request(lambda client: client.shares())
    if common.as_json:
        print_json(shares)
        return
    queues = {queue.path: queue for queue in common.request(lambda client: client.queues())}
    returns = {loan.queue: _returns(loan) for loan in common.request(lambda client: client.loans())}
    listed = [(queues[path], percent) for path, percent in shares.shares.items() if path in queues]
    rows = [
        (
            queue.path,
            "" if percent is None else percent,
            f"{queue.entitlement_percent:.1f}%",
            f"{queue.use_percent:.1f}%",
            f"{queue.loan_percent:.1f}%",
            returns.get(queue.path, ""),
            f"{queue.past_percent:.1f}%",
        )
        for queue, percent in listed
    ]
    print_table(("QUEUE", "SHARE", "ENTITLED", "USES", "ON LOAN", "RETURNS", "PAST"), rows)
    for queue in queues.values():
        for user in queue.users:
            print_text(f"{queue.path}: {user.user} uses {user.use_percent:.1f}%, past {user.past_percent:.1f}%")
    for rule in shares.requestors:
        print_text(f"users that match {rule.match!r} go to {rule.queue}")
    if shares.rebalance_threshold != 0 and shares.rebalance_after:
        apart = "" if shares.rebalance_threshold is None else f" while queues are {shares.rebalance_threshold}% apart"
        typer.echo(f"loans are stopped when their owner has waited for {shares.rebalance_after:g} s{apart}")


def _returns(loan: Loan) -> str:
    """Return when a loan returns by itself, in a few words."""
    if not loan.returns:
        return "not known"
    last = loan.returns[-1]
    when = f"in {ahead(last.at)}"
    return when if loan.unknown_percent < 0.05 else f"{last.percent:.1f}% {when}, the rest not known"


@share.command("set")
def set_shares(
    path: QueuePath,
    share: Annotated[
        int,
        typer.Argument(
            help="Share, relative to those of the other queues below the same parent.", metavar="SHARE", min=0
        ),
    ],
    common: Common,
) -> None:
    """Set the share of a queue.

    Queues below the same parent divide its capacity by their shares: a queue with share 150 beside one with share 50
    gets three quarters. A queue without a share is entitled to nothing if another queue there has one. Afterwards the
    entitlements of all these queues are shown.
    """
    show_differences(common, common.request(lambda client: client.set_shares({path: share})))
    if not common.as_json:
        _show_siblings(path, common)


def _show_siblings(path: str, common: Common) -> None:
    """Print the entitlements of a queue and its siblings, and warn about siblings without a share."""
    parent = path.rpartition(".")[0]
    queues = common.request(lambda client: client.queues())
    level = [queue for queue in queues if queue.path.rpartition(".")[0] == parent]
    total = sum(queue.share or 0 for queue in level)
    for queue in level:
        share = "no share" if queue.share is None else f"share {queue.share} of {total}"
        print_text(f"{queue.path}: {share}, entitled to {queue.entitlement_percent:.1f}% of the cluster")
    without = [queue.path for queue in level if queue.share is None]
    if without and total:
        lacks = "has no share and is" if len(without) == 1 else "have no share and are"
        typer.echo(
            f"fairlead: warning: {', '.join(without)} {lacks} entitled to nothing; set one with "
            f"`fairlead share set {without[0]} N`",
            err=True,
        )


@share.command("match")
def set_patterns(
    *,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            help="Pattern of user names and their queue, such as 'ci-*=root.ci'. The first one that matches counts.",
            metavar="PATTERN=QUEUE…",
        ),
    ] = None,
    common: Common,
) -> None:
    """Set the patterns that choose a queue by the name of a user. The new list replaces the old one."""
    requestors: list[Any] = []
    for pattern in patterns or ():
        match, equals, path = pattern.rpartition("=")
        if not equals:
            raise wrong("PATTERN", f"{pattern!r} is not PATTERN=QUEUE")
        requestors.append({"match": match, "queue": path})
    show_differences(common, common.request(lambda client: client.set_shares(requestors=requestors)))


class RebalanceOptions(Common):
    threshold: int | None = option(
        "Distance in percent between the queue furthest above its share and the one furthest below. Above it, "
        "tasks on borrowed capacity are stopped; 0 for never."
    )
    after: str | None = option("How long that distance must last before tasks are stopped, such as 4min.")


@share.command()
def rebalance(options: RebalanceOptions) -> None:
    """Set when queues get back capacity that other queues have borrowed."""
    show_differences(
        options,
        options.request(
            lambda client: client.set_shares(rebalance_threshold=options.threshold, rebalance_after=options.after)
        ),
    )
