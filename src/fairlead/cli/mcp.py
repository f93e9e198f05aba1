"""`fairlead mcp`: tools for assistants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli.options import Common
from fairlead.cli.output import fail
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.client import AsyncClient


class Served(Common):
    http: int | None = option(
        "Serve over HTTP on this port of 127.0.0.1, 0 for a free one, instead of on standard input and output. Each "
        "request carries a Fairlead token, as `Authorization: Bearer TOKEN`.",
        metavar="PORT",
        min=0,
        max=65_535,
    )


def mcp(options: Served) -> None:
    """Serve the cluster to an assistant, as tools of the Model Context Protocol.

    Over standard input and output, the tools have the rights of the token in FAIRLEAD_TOKEN. Give an assistant a token
    with a scope: `fairlead token create` has --read-only, --queue, --budget and --confirm.
    """
    try:
        from fairlead.assistants.protocol import serve_http, serve_stdio
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        fail('the package mcp is missing; install it with: pip install "fairlead[mcp]"')
    from fairlead.client import AsyncClient, find_endpoint

    place = find_endpoint()

    def client_of(token: str) -> AsyncClient:
        return AsyncClient(place.url, token, place.authority, options.partition, place.insecure)

    if options.http is None:
        serve_stdio(lambda _: client_of(place.token))
        return
    try:
        serve_http(client_of, options.http, lambda url: options.show({"url": url}, [f"assistants reach it at {url}"]))
    except OSError as problem:
        fail(f"port {options.http} cannot be used ({problem.strerror}); choose another one with --http")
