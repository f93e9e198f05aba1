"""Handlers for the caller's identity, sessions of the web page, and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import MEMORY, MILLI, SECOND, parse_duration, shown
from fairlead.http.context import NOT_STORED, Request
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response, cookie
from fairlead.identity.sessions import HEADER
from fairlead.identity.tokens import JOIN_SECONDS, ROLES, JoinLimits, Scopes, Token, hours_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import API
from fairlead.wire.unserved import Unserved


@serves(op.Whoami)
async def whoami(request: Request, asked: op.Whoami) -> wire.Caller:
    caller = request.caller
    return wire.Caller(user=caller.user, groups=list(caller.groups), role=caller.role, scope=_scope(caller))


@serves(op.Login)
async def login(request: Request, asked: op.Login) -> Response:
    services, caller = request.services, request.caller
    if not services.tokens.is_stored(caller):
        raise Refused("token", "the token of a task opens no session; log in with a token of your own", "forbidden")
    value, key, expires = services.sessions.open(caller)
    seconds = max(0, int(expires - services.tokens.now()))
    answer = wire.Session(user=caller.user, groups=list(caller.groups), role=caller.role, key=key, expires=expires)
    return Response(answer, 201, headers={**NOT_STORED, **_cookie(request, value, seconds)})


@serves(op.Logout)
async def logout(request: Request, asked: op.Logout) -> Response:
    if request.header(HEADER.decode()):
        request.services.sessions.end(request.header("cookie"))
    return Response(wire.Done(), headers=_cookie(request, "", 0))


def _cookie(request: Request, value: str, seconds: int) -> dict[str, str]:
    """Return the header that sets the cookie of a session."""
    return cookie(request.services.sessions.cookie, value, API, seconds, secure=request.scope["scheme"] == "https")


@serves(op.Tokens)
async def tokens(request: Request, asked: op.Tokens) -> wire.Tokens:
    return wire.Tokens(tokens=[_shown(token) for token in request.services.tokens.all()])


@serves(op.CreateToken)
async def create(request: Request, asked: op.CreateToken) -> wire.NewToken:
    read = Reader(asked.document, "", "a token")
    role = read.choice("role", ROLES)
    note = read.text("note", "", most=200)
    expires = read.optional_duration("expires_in")
    if expires == 0:
        raise Refused(
            "expires_in", "0 would make a token that has expired already; leave it out, or give a longer time"
        )
    expires_in = None if expires is None else expires / SECOND
    services = request.services
    if role == "join":
        node, uses = _name(read, "node"), read.count("uses", 1, 1, wire.MAX_USES)
        limits: JoinLimits = {
            "partition": _name(read, "partition"),
            "pool": _name(read, "pool"),
            "users": tuple(sorted(set(read.names("users", most=1_000)))),
            "uses": uses,
            "note": note,
        }
        read.close()
        if node and uses > 1:
            raise Refused("uses", f"a token for node {node} is used once; leave one of the two out")
        seconds = JOIN_SECONDS if expires_in is None else expires_in
        [(secret, token)] = await services.threads.run(services.identities.invite, (node,), seconds, **limits)
    else:
        user = read.name("user")
        groups = read.names("groups", most=1_000)
        scopes = _scopes(read, role)
        read.close()
        secret, token = await services.threads.run(
            lambda: services.tokens.create(cast(wire.Role, role), user, groups, note, expires_in, **scopes)
        )
    return wire.NewToken(secret=secret, token=_shown(token))


@serves(op.RevokeToken)
async def revoke(request: Request, asked: op.RevokeToken) -> wire.Done:
    services = request.services
    try:
        await services.threads.run(services.tokens.revoke, asked.token)
    except Refused as refusal:
        raise Refused(refusal.field, refusal.problem, "missing") from None
    except Unserved as problem:
        services.log("revocation not written", {"token": asked.token, "problem": str(problem.__cause__)})
        raise
    finally:
        services.end_streams(asked.token)  # of an unknown token there are none
    return wire.Done()


def _name(read: Reader, key: str) -> str:
    """Return the name under a key; empty if it is missing or empty."""
    return check_name(read.get(key), key) if read.get(key) not in (None, "") else ""


def _scopes(read: Reader, role: str) -> Scopes:
    """Return what a user's token may not do, as its document says."""
    budget = read.get("budget") or {}
    if not isinstance(budget, Mapping):
        raise Refused("budget", f"{shown(budget)} is not a mapping; write one such as {{gpu: 10h}}")
    if MEMORY in budget:
        raise Refused(f"budget.{MEMORY}", "memory has no hours; write cpu or gpu")
    scopes: Scopes = {
        "read_only": read.flag("read_only", False),
        "queue": read.text("queue", "", most=1_000),
        "budget": tuple(
            (name, parse_duration(hours, f"budget.{name}") * MILLI)
            for name, hours in sorted(budget.items(), key=lambda pair: str(pair[0]))
        ),
        "confirm": read.flag("confirm", False),
    }
    if scopes["queue"] and not scopes["queue"].startswith("root"):
        raise Refused("queue", f"{shown(scopes['queue'])} is not the path of a queue; write one such as root.ml")
    for key in ("queue", "budget"):
        if scopes[key] and role != "user":
            raise Refused(key, f"a token of role {role} is for the whole cluster; leave it out, or use the role user")
    if scopes["read_only"] and (scopes["budget"] or scopes["queue"] or scopes["confirm"]):
        raise Refused(
            "read_only", "a token that changes nothing needs no other bound; leave queue, budget, confirm out"
        )
    return scopes


def _scope(token: Token) -> wire.Scope:
    return wire.Scope(
        read_only=token.read_only,
        queue=token.queue,
        budget={name: hours_of(amount) for name, amount in token.budget},
        left={name: hours_of(amount) for name, amount in token.left().items()},
        confirm=token.confirm,
    )


def _shown(token: Token) -> wire.Token:
    answer = msgspec.convert(token, wire.Token, from_attributes=True)
    return msgspec.structs.replace(answer, scope=_scope(token))
