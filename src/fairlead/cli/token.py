"""`fairlead token`: create, list and revoke access tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.options import ClusterWide, Yes
from fairlead.cli.output import Column, ago, ahead, confirm, print_json
from fairlead.cli.typer_commands import Group, Options

if TYPE_CHECKING:
    from fairlead.wire import api as wire

token = Group("token", "Create, list and revoke access tokens.")

OWNER = "owner"
"""The token of the data directory."""


class NewToken(Options):
    """The options of a new token, named as in the request."""

    role: Annotated[
        Literal["user", "operator", "admin", "join"],
        typer.Option(
            help="What the token allows: to use jobs of one user (user), to operate the cluster (operator), to "
            "change everything (admin), or to add a machine as a node (join)."
        ),
    ]
    user: Annotated[str | None, typer.Option(help="Name of the user that the token is for.")] = None
    groups: Annotated[list[str] | None, typer.Option("--group", help="A group of the user; may be repeated.")] = None
    node: Annotated[str | None, typer.Option(help="With --role join: the only node that may join with it.")] = None
    pool: Annotated[
        str | None,
        typer.Option(
            help="With --role join: nodes that join with it belong to this pool.", autocompletion=completion.pools
        ),
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(
            help="With --role join: nodes that join with it belong to this partition.",
            autocompletion=completion.partitions,
        ),
    ] = None
    users: Annotated[
        list[str] | None,
        typer.Option("--for", help="With --role join: the node runs only tasks of this user; may be repeated."),
    ] = None
    uses: Annotated[
        int | None, typer.Option(help="With --role join: number of machines that may join with it.", show_default="1")
    ] = None
    note: Annotated[str, typer.Option(help="Note that `token list` shows.")] = ""
    expires_in: Annotated[
        str | None, typer.Option(help="Lifetime, such as 30d. By default unlimited; with --role join, 1h.")
    ] = None


@token.command("create")
def create_token(new: NewToken, common: ClusterWide) -> None:
    """Create a token and print it. It cannot be shown again."""
    from fairlead.wire import operations as op

    document: Any = {name: value for name, value in vars(new).items() if value is not None}
    created = common.request(op.CreateToken(document=document))
    if common.as_json:
        print_json(created)
        return
    typer.echo(created.secret)
    if new.user is not None:
        for line in _separation(common, new.user):
            typer.echo(f"fairlead: {line}", err=True)


def _separation(common: ClusterWide, user: str) -> list[str]:
    """Return warnings on nodes that refuse the tasks of the user, or do not separate them from those of other users.

    Empty if there is no other user or no node.
    """
    others = {token.user for token in _tokens(common) if token.role != "join"} - {user}
    with common.client() as client:
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
    return lines or [f"tasks of {user} run as their own system user on every node"]


def _names(nodes: list[Any]) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _tokens(common: ClusterWide) -> list[wire.Token]:
    from fairlead.wire import operations as op

    return common.request(op.Tokens()).tokens


def _admits(token: wire.Token) -> str:
    """Return what a join token is restricted to, such as `node=box for=ann`."""
    bounds = {"node": token.node, "pool": token.pool, "partition": token.partition, "for": ",".join(token.users)}
    return " ".join(f"{name}={value}" for name, value in bounds.items() if value)


TOKENS: tuple[Column[wire.Token], ...] = (
    Column("token", lambda token: token.id),
    Column("role", lambda token: token.role),
    Column("user", lambda token: token.user),
    Column("groups", lambda token: ",".join(token.groups)),
    Column("admits", _admits),
    Column("uses", lambda token: token.uses or ""),
    Column("created", lambda token: ago(token.created)),
    Column("expires", lambda token: "never" if token.expires is None else f"in {ahead(token.expires)}"),
    Column("note", lambda token: token.note),
)


@token.command("list")
def list_tokens(common: ClusterWide) -> None:
    """List tokens with their user, role and expiry. The tokens themselves are not shown."""
    common.table(_tokens(common), TOKENS)


@token.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="Id of a token, as shown by `token list`.", metavar="TOKEN")],
    *,
    yes: Yes = False,
    common: ClusterWide,
) -> None:
    """Revoke a token: it can no longer be used.

    Commands on the server's machine use the token `owner`, so revoking it needs a confirmation.
    """
    from fairlead.wire import operations as op

    if name == OWNER:
        confirm(
            f"Commands on the server's machine use {OWNER}. Revoke it, so that they fail until the server is started "
            "again?",
            yes,
        )
    common.change(op.RevokeToken(token=name), f"{name} was revoked")
