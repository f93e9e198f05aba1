"""`fairlead secret`: list, set and remove secrets that jobs can use, and change the key that encrypts them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fairlead.cli.options import ClusterWide, Output
from fairlead.cli.output import fail
from fairlead.cli.server_options import Data, Database, SecretsKey, check_database, directory_of, lock
from fairlead.cli.typer_commands import Group

secret = Group("secret", "List, set and remove secrets that jobs can use.")

SecretName = Annotated[str, typer.Argument(help="Name of a secret.", metavar="SECRET")]


@secret.command("list")
def list_secrets(common: ClusterWide) -> None:
    """List the names of your secrets."""
    found = common.request(lambda client: client.secrets())
    common.show({"secrets": found}, found)


@secret.command("set")
def set_secret(name: SecretName, common: ClusterWide) -> None:
    """Store a secret of at most 64 KiB. The value is read from standard input, or typed at a prompt on a terminal."""
    value = typer.prompt(name, hide_input=True) if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    common.change(lambda client: client.set_secret(name, value), f"{name} is set")


@secret.command("remove")
def remove_secret(name: SecretName, common: ClusterWide) -> None:
    """Remove a secret."""
    common.change(lambda client: client.remove_secret(name), f"{name} was removed")


@secret.command("rotate-key")
def rotate_key(*, data: Data = None, secrets_key: SecretsKey = None, database: Database = "", output: Output) -> None:
    """Encrypt all secrets with a new key, or create the first key.

    The server must be stopped. With --database, all servers must be stopped, and the new key file must be copied to
    each of them before it starts.
    """
    from fairlead.server.failure import Failed
    from fairlead.server.storage import rotate_secrets_key

    check_database(database)
    directory = directory_of(data)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = lock(directory)
    if held is None:
        fail(f"a server runs on {directory}; stop it with `fairlead down`, and start it again afterwards")
    try:
        key = rotate_secrets_key(directory, secrets_key, database)
    except Failed as problem:
        fail(str(problem))
    finally:
        os.close(held)
    output.show({"ok": True, "key": str(key)}, [f"{key} has a new key"])
