"""`fairlead token`: create, list and revoke access tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import pairs
from fairlead.cli.options import ClusterWide, Yes
from fairlead.cli.output import Column, ago, ahead, confirm, print_json
from fairlead.cli.typer_commands import Group, Options, option

if TYPE_CHECKING:
    from fairlead.wire import api as wire

token = Group("token", "Create, list and revoke access tokens.")

OWNER = "owner"
"""The id of the token in the data directory."""


class NewToken(Options):
    """The options of a new token. Their names are those of the request."""

    role: Literal["user", "operator", "admin", "join", "manager"] = option(
        "What the token allows: user for the jobs of one user, operator for the cluster and all jobs, admin for "
        "everything, join to add a machine as a node, manager to run a resource manager such as Kubernetes.",
        required=True,
    )
    user: str | None = option("Name of the user that the token is for.")
    groups: list[str] | None = option("A group of the user; may be repeated.", "--group")
    node: str | None = option("With --role join: name of the only node that may join with this token.")
    pool: str | None = option(
        "With --role join: nodes that join with this token belong to this pool.", autocompletion=completion.pools
    )
    partition: str | None = option(
        "With --role join: nodes that join with this token belong to this partition.",
        autocompletion=completion.partitions,
    )
    users: list[str] | None = option(
        "With --role join: the node runs only tasks of this user; may be repeated.", "--for"
    )
    uses: int | None = option("With --role join: number of machines that may join with this token.", show_default="1")
    read_only: bool | None = option("The token may change nothing.", "--read-only", show_default=False)
    queue: str | None = option(
        "The token may change jobs only in this queue and the queues below it.", autocompletion=completion.queues
    )
    budget: list[str] | None = option(
        "All jobs submitted with the token may together use this many hours of a resource, such as gpu=10h or "
        "cpu=200h; may be repeated. Each job needs a time limit, which is charged in full.",
        metavar="RESOURCE=TIME",
    )
    confirm: bool | None = option(
        "Changes that affect the work of other users are first refused, with what they would do and a code that "
        "confirms them.",
        "--confirm",
        show_default=False,
    )
    note: str = option("Note about the token, shown by `token list`.")
    expires_in: str | None = option("Lifetime, such as 30d. By default unlimited; with --role join, 1h.")


@token.command("create")
def create_token(new: NewToken, common: ClusterWide) -> None:
    """Create a token and print it. It cannot be shown again."""
    given = {name: value for name, value in vars(new).items() if value is not None and value is not False}
    if new.budget:
        given["budget"] = dict(pairs(new.budget, "--budget"))
    created = common.request(lambda client: client.create_token(**given))
    if common.as_json:
        print_json(created)
        return
    typer.echo(created.secret)
    if new.user is not None:
        with common.client() as client:
            others = {token.user for token in client.tokens() if token.role != "join"} - {new.user}
            nodes = [node for node in client.nodes() if not node.manager]
        if others and nodes:
            for line in _separation(new.user, nodes):
                typer.echo(f"fairlead: {line}", err=True)


def _separation(user: str, nodes: list[wire.Node]) -> list[str]:
    """Return warnings on nodes that refuse the tasks of a user, or do not separate them from those of other users."""
    closed = [node for node in nodes if node.users and user not in node.users]
    mixed = [node for node in nodes if node.labels.get("users") != "separate" and node not in closed]
    lines = []
    if closed:
        lines.append(
            f"no task of {user} runs on {_names(closed)}: these nodes take only tasks of other users. To change that, "
            f"start their agents as root, which separates the tasks of all users, or with `--for {user}`"
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


def _admits(token: wire.Token) -> str:
    """Return the restrictions of a join token, such as `node=box for=ann`."""
    bounds = {"node": token.node, "pool": token.pool, "partition": token.partition, "for": ",".join(token.users)}
    return " ".join(f"{name}={value}" for name, value in bounds.items() if value)


def _scope(scope: wire.Scope) -> str:
    """Return what a token may not do, such as `queue=root.ml gpu=9.5h/10h`."""
    parts = [word for word, given in (("read-only", scope.read_only), ("confirm", scope.confirm)) if given]
    parts += [f"queue={scope.queue}"] * bool(scope.queue)
    parts += [f"{name}={scope.left[name]:.3g}h/{hours:.3g}h" for name, hours in scope.budget.items()]
    return " ".join(parts)


TOKENS: tuple[Column[wire.Token], ...] = (
    Column("token", lambda token: token.id),
    Column("role", lambda token: token.role),
    Column("user", lambda token: token.user),
    Column("groups", lambda token: ",".join(token.groups)),
    Column("admits", _admits),
    Column("scope", lambda token: _scope(token.scope)),
    Column("uses", lambda token: token.uses or ""),
    Column("created", lambda token: ago(token.created)),
    Column("expires", lambda token: "never" if token.expires is None else f"in {ahead(token.expires)}"),
    Column("note", lambda token: token.note),
)


@token.command("list")
def list_tokens(common: ClusterWide) -> None:
    """List tokens by their ids, with role, user and expiry. The secrets of the tokens are not shown."""
    common.table(common.request(lambda client: client.tokens()), TOKENS)


@token.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="Id of a token, as shown by `token list`.", metavar="TOKEN")],
    *,
    yes: Yes = False,
    common: ClusterWide,
) -> None:
    """Revoke a token: it can no longer be used.

    The command asks for a confirmation before it revokes the token `owner`, which commands on the server's machine use.
    """
    if name == OWNER:
        confirm(
            f"Commands on the server's machine use the token {OWNER}, and will fail until the server is started again. "
            "Revoke it?",
            yes,
        )
    common.change(lambda client: client.revoke_token(name), f"{name} was revoked")
