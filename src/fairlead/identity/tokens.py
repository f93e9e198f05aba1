"""Tokens: user tokens, which requests carry, and join tokens, which admit machines as nodes.

One document stores the digests of all tokens, but no tokens.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import time
from typing import Any, Protocol, TypedDict, Unpack

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import Amounts
from fairlead.core.resources import HOUR, MILLI
from fairlead.identity.smallfile import (
    Conflict,
    Document,
    FileProblem,
    again_on_conflict,
    document_at,
    read_small,
    write_small,
)
from fairlead.wire import task_token
from fairlead.wire.api import Role
from fairlead.wire.unserved import Unserved
from fairlead.writer.clock import Seconds

ROLES: tuple[Role, ...] = ("user", "operator", "admin", "join", "manager")
MAX_TOKENS = 100_000
JOIN_SECONDS = 3600.0
"""Default lifetime of a join token."""


class JoinLimits(TypedDict, total=False):
    """Limits of join tokens: the fields of `Token` with these names."""

    partition: str
    pool: str
    users: tuple[str, ...]
    uses: int
    note: str


class Scopes(TypedDict, total=False):
    """What a user's token may not do: the fields of `Token` with these names."""

    read_only: bool
    queue: str
    budget: Amounts
    confirm: bool


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    digest: str
    role: Role
    user: str = ""
    groups: tuple[str, ...] = ()
    partition: str = ""
    """For a join token: the only partition, pool and node that it admits to; empty for any."""
    pool: str = ""
    node: str = ""
    users: tuple[str, ...] = ()
    """For a join token: the only users whose tasks the node may take; empty for all."""
    uses: int = 0
    """For a join token: how many more machines it admits."""
    note: str = ""
    read_only: bool = False
    """True if it may change nothing."""
    queue: str = ""
    """The only queue, with the queues below it, in which it may change jobs; empty for all."""
    budget: Amounts = ()
    """How much of each resource all jobs submitted with it may use, in the core's units times microseconds."""
    spent: Amounts = ()
    """How much of the budget its jobs may use so far."""
    confirm: bool = False
    """True if changes that affect the work of other users need a confirmation."""
    created: float = 0.0
    expires: float | None = None

    @property
    def operator(self) -> bool:
        """True if its commands count as those of an operator. Those that a manager may give are checked earlier."""
        return self.role in ("operator", "admin", "manager")

    @property
    def scoped(self) -> bool:
        """True if its jobs must not get the rights of its user, which are larger."""
        return bool(self.queue or self.budget or self.confirm)

    def left(self) -> dict[str, int]:
        """Return what is left of the budget."""
        spent = dict(self.spent)
        return {name: most - spent.get(name, 0) for name, most in self.budget}


class OfTasks(Protocol):
    """Recognizes the tokens of tasks, which are not stored."""

    def find(self, secret: str) -> Token | None: ...

    def is_known(self, token: Token) -> bool: ...


class Tokens:
    """The tokens of a cluster, in a file that no other process writes, or in a document that servers share."""

    def __init__(self, place: Path | Document, now: Seconds = time) -> None:
        """Load the tokens. They expire by the clock `now`."""
        self._document = document_at(place)
        self.now = now
        self._lock = Lock()
        """Held by each change until it is written."""
        self._unwritten: set[str] = set()
        """Revoked tokens that are still in the document, because it could not be written."""
        self._by_digest: dict[str, Token] = {}
        self.of_tasks: OfTasks | None = None
        """Recognizes the tokens of tasks."""
        self._load()

    def _load(self) -> None:
        remedy = "remove it: all tokens are gone then, and the next start makes new ones"
        stored = read_small(self._document, list[Token], remedy)
        self._by_digest = {token.digest: token for token in stored or ()}

    def refresh(self) -> None:
        """Read the tokens again if another server has changed them."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        if self._document.is_changed():
            self._load()

    def find(self, secret: str) -> Token | None:
        """Return the valid token with this secret, or None."""
        if secret.startswith(task_token.KIND):
            return None if self.of_tasks is None else self.of_tasks.find(secret)
        return self.find_digest(_digest(secret))

    def find_digest(self, digest: str) -> Token | None:
        """Return the valid token whose secret has this digest, or None."""
        token = self._by_digest.get(digest)
        if token is None or (token.expires is not None and token.expires <= self.now()):
            return None
        return token

    def is_known(self, token: Token) -> bool:
        """True unless the token was revoked since `find` returned it."""
        if self.of_tasks is not None and token.digest.startswith(task_token.KIND):
            return self.of_tasks.is_known(token)
        return self.is_stored(token)

    def is_stored(self, token: Token) -> bool:
        """True unless the token was revoked, or is that of a task."""
        return token.digest in self._by_digest

    def all(self) -> list[Token]:
        return _in_order(self._by_digest)

    def create(
        self,
        role: Role,
        user: str,
        groups: tuple[str, ...] = (),
        note: str = "",
        expires_in: float | None = None,
        id: str = "",
        **scopes: Unpack[Scopes],
    ) -> tuple[str, Token]:
        """Create a token for a user. Return its secret, which is not stored, and the token."""
        more = {"id": id} if id else {}
        fields = {"role": role, "user": user, "groups": groups, "note": note, **scopes, **more}
        secret, token = _new_token("fl", self.now(), expires_in, **fields)
        self._add([token])
        return secret, token

    def invite(self, nodes: Sequence[str], expires_in: float, **limits: Unpack[JoinLimits]) -> list[tuple[str, Token]]:
        """Create a join token for each of these nodes; "" means any node. Return the secrets and the tokens."""
        fields = {"role": "join", "uses": 1, **limits}
        created = [_new_token("fj", self.now(), expires_in, node=node, **fields) for node in nodes]
        self._add([token for _, token in created])
        return created

    @again_on_conflict
    def spend(self, secret: str, partition: str, node: str, fresh: bool) -> Token:
        """Use a join token once, for a node. `fresh` is True if no node of this name has a valid key."""
        with self._lock:
            self._refresh()
            token = self.find(secret)
            create = f"create another: fairlead token create --role join --node {node}"
            if token is None or token.role != "join":
                raise Refused("token", f"the join token is not known, was used before or has expired; {create}")
            if token.partition not in ("", partition):
                raise Refused("token", f"the join token is for partition {token.partition}, not {partition}; {create}")
            if token.node not in ("", node):
                raise Refused("token", f"the join token is for node {token.node}, not for {node}; {create}")
            if not token.node and not fresh:
                raise Refused("node", f"node {node} has joined with another key, and the token names no node; {create}")
            left = {digest: other for digest, other in self._by_digest.items() if other is not token}
            if token.uses > 1:
                left[token.digest] = msgspec.structs.replace(token, uses=token.uses - 1)
            try:
                self._save(left)
            except Conflict:
                raise  # `again_on_conflict` retries
            except FileProblem as problem:
                raise Refused("token", "the server could not write to its disk; try again", "unavailable") from problem
            return token

    @again_on_conflict
    def charge(self, token: Token, costs: dict[str, int]) -> None:
        """Take costs from the budget of a token, or give them back if they are negative. Refuse more than is left."""
        with self._lock:
            self._refresh()
            known = self._by_digest.get(token.digest)
            if known is None:
                return  # it was revoked meanwhile
            need_left(known, costs)
            spent = dict(known.spent)
            now_spent = tuple((name, max(0, spent.get(name, 0) + costs.get(name, 0))) for name, _ in known.budget)
            charged = msgspec.structs.replace(known, spent=now_spent)
            try:
                self._save({**self._by_digest, token.digest: charged})
            except Conflict:
                raise
            except FileProblem as problem:
                raise Refused("token", "the server could not write to its disk; try again", "unavailable") from problem

    @again_on_conflict
    def revoke(self, id: str) -> None:
        """Revoke a token. It is refused at once, also before the revocation is durable and this returns."""
        with self._lock:
            with suppress(FileProblem):  # the token is revoked in this process even if that cannot be written
                self._refresh()
            left = {digest: token for digest, token in self._by_digest.items() if token.id != id}
            if len(left) == len(self._by_digest) and id not in self._unwritten:
                raise Refused("token", f"there is no token {id[:40]!r}; `fairlead token list` shows them", "unknown")
            self._by_digest = left
            self._unwritten.add(id)
            try:
                self._save(left, spare=True)
            except Conflict:
                raise
            except FileProblem as problem:
                raise Unserved(
                    "unwritten",
                    f"token {id} is revoked for now, but the server could not write that to its disk, and would know "
                    "the token again at its next start; make room there, and revoke the token again",
                ) from problem

    def standing(self, file: Path, id: str, role: Role, user: str, note: str) -> str:
        """Return the secret in a file if its token is valid; otherwise create a token and write its secret there."""
        if file.exists():
            secret = file.read_text().strip()
            if self.find(secret) is not None:
                return secret
        if any(token.id == id for token in self._by_digest.values()):
            self.revoke(id)
        secret, _ = self.create(role, user, note=note, id=id)
        write_small(file, secret.encode() + b"\n")
        return secret

    @again_on_conflict
    def _add(self, tokens: list[Token]) -> None:
        with self._lock:
            self._refresh()
            now = self.now()
            # Pools create thousands of short-lived join tokens; drop the expired ones.
            kept = {
                digest: token
                for digest, token in self._by_digest.items()
                if token.role != "join" or token.expires is None or token.expires > now
            }
            if len(kept) + len(tokens) > MAX_TOKENS:
                raise Refused("token", f"there are {MAX_TOKENS} tokens; revoke some first", "conflict")
            self._save({**kept, **{token.digest: token for token in tokens}})

    def _save(self, changed: dict[str, Token], spare: bool = False) -> None:
        """Replace all tokens. If writing fails, the old ones stay in use."""
        self._document.write(msgspec.json.format(msgspec.json.encode(_in_order(changed))), spare)
        self._by_digest = changed
        self._unwritten.clear()


def need_left(token: Token, costs: dict[str, int]) -> None:
    """Refuse costs of which the budget of a token does not have enough left."""
    for name, left in token.left().items():
        if costs.get(name, 0) > max(0, left):
            raise Refused(
                "budget",
                f"it may use {hours_of(costs[name]):g} {name} hours, and the budget of this token has "
                f"{hours_of(left):g} left; write a shorter time_limit, fewer tasks or tries, or use another token",
                "forbidden",
            )


def hours_of(amount: int) -> float:
    """Return an amount times microseconds as hours, such as 0.5 for half an hour of a GPU."""
    return amount / (MILLI * HOUR)


def _new_token(kind: str, now: float, expires_in: float | None, **fields: Any) -> tuple[str, Token]:
    secret = f"{kind}_{secrets.token_urlsafe(32)}"
    expires = None if expires_in is None else now + expires_in
    fields = {"id": secrets.token_hex(6), **fields}
    return secret, Token(digest=_digest(secret), created=now, expires=expires, **fields)


def _in_order(tokens: dict[str, Token]) -> list[Token]:
    return sorted(tokens.values(), key=lambda token: (token.created, token.id))


def _digest(secret: str) -> str:
    """Return a fast digest, which is safe because secrets are long and random."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
