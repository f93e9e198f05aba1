"""Handlers for secrets: list, set and remove."""

from __future__ import annotations

from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import SECOND
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Secrets)
async def secrets(request: Request, asked: op.Secrets) -> wire.Secrets:
    return wire.Secrets(secrets=request.services.secrets.names(request.caller.user))


@serves(op.SetSecret)
async def set_secret(request: Request, asked: op.SetSecret) -> wire.Done:
    read = Reader(asked.document, "", "a secret")
    value = read.text("value")
    expires = read.optional_duration("expires_in")
    read.close()
    check_name(asked.name, "secret")
    if not value:
        raise Refused(
            "value", f"it is empty; give a value, or remove the secret with `fairlead secret remove {asked.name}`"
        )
    if expires == 0:
        raise Refused(
            "expires_in", "0 would set a secret that has expired already; leave it out, or give a longer time"
        )
    expires_in = None if expires is None else expires / SECOND
    services = request.services
    await services.threads.run(services.secrets.set, request.caller.user, asked.name, value, expires_in)
    return wire.Done()


@serves(op.RemoveSecret)
async def remove_secret(request: Request, asked: op.RemoveSecret) -> wire.Done:
    services = request.services
    await services.threads.run(services.secrets.remove, request.caller.user, asked.name)
    return wire.Done()
