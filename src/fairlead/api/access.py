"""Handlers for access: the caller, sessions of the web page, and tokens, which only administrators manage."""

from __future__ import annotations

from typing import Annotated, Any, cast

from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import PathParameter

from fairlead.api.context import ADMINS, NOT_STORED, USERS, Shaped, caller_of, services_of
from fairlead.api.problems import Unserved
from fairlead.api.tokens import JOIN_SECONDS, ROLES, Token
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import SECOND
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]


@get("/whoami", operation_id="whoami", guards=[USERS], summary="The caller")
async def whoami(request: HttpRequest) -> wire.Caller:
    """Return user, groups and role of the caller's token."""
    caller = caller_of(request)
    return wire.Caller(user=caller.user, groups=list(caller.groups), role=caller.role)


@post("/session", operation_id="login", guards=[USERS], summary="Open a session of the web page")
async def login(request: HttpRequest) -> Response[wire.Session]:
    """Open a session for the caller's token. The answer sets a cookie and has the key of the session."""
    services, caller = services_of(request), caller_of(request)
    value, key, expires = services.sessions.open(caller)
    cookie = _cookie(request, value, max(0, int(expires - services.tokens.now())))
    answer = wire.Session(user=caller.user, groups=list(caller.groups), role=caller.role, key=key, expires=expires)
    return Response(answer, cookies=[cookie], headers=NOT_STORED)


@delete("/session", operation_id="logout", guards=[USERS], summary="Close a session", status_code=200)
async def logout(request: HttpRequest) -> Response[wire.Done]:
    """Remove the cookie of the session."""
    return Response(wire.Done(), cookies=[_cookie(request, "", 0)])


def _cookie(request: HttpRequest, value: str, seconds: int) -> Cookie:
    """Return the cookie of a session, for this server only and out of reach of scripts."""
    return Cookie(
        key=services_of(request).sessions.cookie,
        value=value,
        path="/api/v1",
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )


@get("/tokens", operation_id="tokens", guards=[ADMINS], summary="Tokens")
async def tokens(request: HttpRequest) -> wire.Tokens:
    """List all tokens, without their secrets, which are not stored."""
    return wire.Tokens(tokens=[_shown(token) for token in services_of(request).tokens.all()])


@post("/tokens", operation_id="createToken", guards=[ADMINS], summary="Create a token")
async def create(request: HttpRequest, data: Annotated[Any, Shaped(wire.TokenDocument)]) -> wire.NewToken:
    """Create a token. The answer has its secret, which cannot be shown again."""
    read = Reader(data, "", "a token")
    role = read.choice("role", ROLES)
    note = read.text("note", "", most=200)
    expires = read.optional_duration("expires_in")
    if expires == 0:
        raise Refused(
            "expires_in", "0 would make a token that has expired already; leave it out, or give a longer time"
        )
    expires_in = None if expires is None else expires / SECOND
    services = services_of(request)
    if role == "join":
        partition, pool, node = (_name(read, field) for field in ("partition", "pool", "node"))
        users = tuple(sorted(set(read.names("users", most=1_000))))
        uses = read.count("uses", 1, 1, wire.MAX_USES)
        read.close()
        if node and uses > 1:
            raise Refused("uses", f"a token for node {node} is used once; leave one of the two out")
        seconds = JOIN_SECONDS if expires_in is None else expires_in
        [(secret, token)] = await services.threads.run(
            services.identities.invite, (node,), partition, pool, users, uses, note, seconds
        )
    else:
        user = read.name("user")
        groups = read.names("groups", most=1_000)
        read.close()
        secret, token = await services.threads.run(
            services.tokens.create, cast(wire.Role, role), user, groups, note, expires_in
        )
    return wire.NewToken(secret=secret, token=_shown(token))


@delete("/tokens/{token_id:str}", operation_id="revokeToken", guards=[ADMINS], status_code=200)
async def revoke(request: HttpRequest, token_id: Annotated[str, PathParameter(max_length=63)]) -> wire.Done:
    """Revoke a token: requests with it are refused, and streams opened with it end."""
    services = services_of(request)
    try:
        await services.threads.run(services.tokens.revoke, token_id)
    except Refused as refusal:
        raise Refused(refusal.field, refusal.problem, "missing") from None
    except Unserved as problem:
        services.log("revocation not written", {"token": token_id, "problem": str(problem.__cause__)})
        services.end_streams(token_id)
        raise
    services.end_streams(token_id)
    return wire.Done()


def _name(read: Reader, key: str) -> str:
    """Return the name under a key, empty if there is none."""
    return check_name(read.get(key), key) if read.get(key) not in (None, "") else ""


def _shown(token: Token) -> wire.Token:
    return wire.Token(
        id=token.id,
        role=token.role,
        user=token.user,
        groups=list(token.groups),
        partition=token.partition,
        pool=token.pool,
        node=token.node,
        users=list(token.users),
        uses=token.uses,
        note=token.note,
        created=token.created,
        expires=token.expires,
    )


HANDLERS = [whoami, login, logout, tokens, create, revoke]
