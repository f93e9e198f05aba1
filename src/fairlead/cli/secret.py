"""`fairlead secret`: list, set and remove secrets that jobs can use, and change the key that encrypts them."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

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
    from fairlead.wire import operations as op

    found = common.request(op.Secrets())
    common.show(found, found.secrets)


@secret.command("set")
def set_secret(name: SecretName, common: ClusterWide) -> None:
    """Store a secret: the text on standard input, or typed at a prompt. At most 64 KiB."""
    from fairlead.wire import operations as op

    value = typer.prompt(name, hide_input=True) if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    document: Any = {"value": value}
    common.change(op.SetSecret(name=name, document=document), f"{name} is set")


@secret.command("remove")
def remove_secret(name: SecretName, common: ClusterWide) -> None:
    """Remove a secret."""
    from fairlead.wire import operations as op

    common.change(op.RemoveSecret(name=name), f"{name} was removed")


@secret.command("rotate-key")
def rotate_key(*, data: Data = None, secrets_key: SecretsKey = None, database: Database = "", output: Output) -> None:
    """Encrypt all secrets with a new key, or create the first key.

    The server must be stopped. With --database all servers must be stopped, and need the new key file before they
    start.
    """
    from fairlead.server.failure import Failed
    from fairlead.server.identity_documents import rotate_secrets_key

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
