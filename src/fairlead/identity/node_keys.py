"""The server's key, and the key of each node.

A node's first key is admitted with a join token. The agent renews the key over its connection before it expires, and
an operator can revoke it. One document stores the public keys of all nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Literal, ParamSpec, TypeVar, Unpack

import msgspec

from fairlead.core.errors import Refused
from fairlead.engines.engine import Peer
from fairlead.identity.smallfile import Document, FileProblem, SmallFile, again_on_conflict, read_small
from fairlead.identity.tokens import JOIN_SECONDS, JoinLimits, Token, Tokens
from fairlead.wire.agent_messages import Challenge, Knock, NewKey, Proof
from fairlead.wire.handshake import Exchange, Key, encoded, is_signed, join_token, nonce
from fairlead.wire.unserved import Unserved

LASTS = 30 * 24 * 3600.0
"""Seconds that the key of a node is valid. It is renewed when a third of this time remains."""
MAX_INSTANCE = 100
UNWRITTEN = "the server could not write to its disk, and nothing was admitted; make room there, and try again"

JOINS = 64
"""Number of locks for joining nodes. Nodes whose names hash to the same lock join one after the other."""
WRITERS = 8
"""Number of threads that admit nodes. Nodes that join at the same time share a write of the document."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Validity = Literal["valid", "due", "expired", "revoked"]


Documents = Callable[[str], Document]
"""Returns a document by its name."""


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key of a node. `next` is the renewed key; it replaces `key` when the agent first connects with it."""

    partition: str
    node: str
    key: str
    expires: float
    next: str = ""
    pool: str = ""
    users: tuple[str, ...] = ()
    instance: str = ""
    revoked: bool = False


Name = tuple[str, str]
"""Partition and node."""


class Identities:
    """The key of the server and the keys of its nodes. The servers of a database share them."""

    def __init__(self, place: Path | Documents, tokens: Tokens) -> None:
        """Load the keys. `place` returns documents by name, or is a folder with files that no other process writes."""
        named = (lambda name: SmallFile(place / name)) if isinstance(place, Path) else place
        self._key = _server_key(named("server-key"))
        self._tokens = tokens
        self.lasts = LASTS
        self._document = named("nodes")
        self._credentials = self._stored()
        self._joining = tuple(Lock() for _ in range(JOINS))
        """One of them, by the name of the node, is held from the use of a join token until the key is admitted."""
        self._changing = Lock()
        self._changes = 0
        self._changed: dict[Name, int] = {}
        """Node whose credential is not written yet → the number of its latest change."""
        self._writing = Lock()
        self._written = 0
        self._threads = ThreadPoolExecutor(WRITERS, "identities")
        """Threads that admit nodes. Requests of users have other threads, so that they do not delay nodes."""

    def _stored(self) -> dict[Name, Credential]:
        stored = read_small(self._document, list[Credential], "remove it and let every node join again with a token")
        return {(entry.partition, entry.node): entry for entry in stored or ()}

    def refresh(self) -> None:
        """Read the keys again if another server has changed them and this server has no unwritten change."""
        with self._writing, self._changing:
            if self._written == self._changes and self._document.is_changed():
                self._credentials = self._stored()

    # -- tokens --------------------------------------------------------------------------------------------------

    def invite(
        self, nodes: Sequence[str] = ("",), expires_in: float = JOIN_SECONDS, **limits: Unpack[JoinLimits]
    ) -> list[tuple[str, Token]]:
        """Create a join token for each of these nodes; "" means any node. They contain the server's public key."""
        tokens = self._tokens.invite(nodes, expires_in, **limits)
        return [(join_token(secret, self._key.public), token) for secret, token in tokens]

    # -- connections of agents, for the hub --------------------------------------------------------------

    def challenge(self, partition: str, knock: Knock) -> tuple[Exchange, Challenge]:
        exchange = Exchange(self._key.public, partition, knock.node, knock.nonce, nonce())
        signature = self._key.sign(exchange.for_server())
        return exchange, Challenge(partition, exchange.server_nonce, exchange.server, signature)

    async def admit(self, exchange: Exchange, proof: Proof) -> Peer:
        return await self._in_thread(self._admit, exchange, proof)

    async def renew(self, peer: Peer, new: NewKey) -> None:
        await self._in_thread(self._renew, peer, new)

    async def settle(self, peer: Peer) -> None:
        await self._in_thread(self._settle, peer)

    async def _in_thread(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))

    def validity(self, peer: Peer) -> Validity:
        credential = self._credentials.get((peer.exchange.partition, peer.node))
        if credential is None or credential.revoked or credential.key != peer.key:
            return "revoked"
        left = credential.expires - self._tokens.now()
        return "expired" if left <= 0 else "due" if left < self.lasts / 3 else "valid"

    def _admit(self, exchange: Exchange, proof: Proof) -> Peer:
        if not is_signed(proof.key, proof.signature, exchange.for_node(proof.key, proof.instance)):
            raise Refused("key", "the challenge was not signed with this key; start the agent again")
        if len(proof.instance) > MAX_INSTANCE:
            raise Refused("instance", f"it is longer than {MAX_INSTANCE} characters; update the agent")
        name, key = (exchange.partition, exchange.node), encoded(proof.key)
        credential = self._credentials.get(name)
        problem = _problem(credential, exchange.node, key, self._tokens.now())
        if problem and not proof.token:
            raise Refused("key", problem)
        if problem:
            with self._joining[hash(name) % len(self._joining)]:
                credential = self._join(name, key, exchange, proof)
        assert credential is not None
        if key == credential.next:
            credential = self._change(name, lambda now: self._promoted(now, exchange.node, key))
        return Peer(exchange, key, credential.pool, credential.users, proof.instance, credential.instance)

    def _join(self, name: Name, key: str, exchange: Exchange, proof: Proof) -> Credential:
        """Admit a node's key with a join token, and return the credential.

        If an earlier connection of the same agent broke while it joined, the key may be admitted already.
        """
        before = self._credentials.get(name)
        if before is not None and not _problem(before, exchange.node, key, self._tokens.now()):
            return before
        fresh = before is None or before.expires <= self._tokens.now()
        token = self._tokens.spend(proof.token, *name, fresh=fresh)
        return self._change(name, lambda now: self._joined(before, now, exchange, proof, token))

    def _renew(self, peer: Peer, new: NewKey) -> None:
        if not is_signed(new.key, new.signature, peer.exchange.for_new_key(new.key)):
            raise Refused("key", "the new key has not signed this connection; start the agent again")
        self._replace(peer, next=encoded(new.key))

    def _settle(self, peer: Peer) -> None:
        self._replace(peer, instance=peer.instance)

    def _replace(self, peer: Peer, **fields: str) -> None:
        def replaced(now: Credential | None) -> Credential:
            if now is None or now.revoked or now.key != peer.key:
                raise _revoked(peer.node)
            return msgspec.structs.replace(now, **fields)

        self._change((peer.exchange.partition, peer.node), replaced)

    def _joined(
        self, before: Credential | None, now: Credential | None, exchange: Exchange, proof: Proof, token: Token
    ) -> Credential:
        """Return the new credential of a joining node. `before` is its credential before the token was used."""
        if now is not before:
            raise Refused(
                "key",
                f"the credential of node {exchange.node} was revoked, or given to another machine, while this one "
                "joined; join again with a new token",
            )
        return Credential(
            partition=exchange.partition,
            node=exchange.node,
            key=encoded(proof.key),
            expires=self._tokens.now() + self.lasts,
            pool=token.pool,
            users=token.users,
            instance=proof.instance if now is None else now.instance,
        )

    def _promoted(self, now: Credential | None, node: str, key: str) -> Credential:
        """Return the credential with the renewed key, at the first connection with it."""
        if now is None or now.revoked or key not in (now.key, now.next):
            raise _revoked(node)
        return msgspec.structs.replace(now, key=key, next="", expires=self._tokens.now() + self.lasts)

    # -- people and pools ----------------------------------------------------------------------------------------

    def about(self, partition: str, node: str) -> tuple[Literal["", "valid", "expired", "revoked"], float | None]:
        """Return the state of a node's credential and when it expires."""
        credential = self._credentials.get((partition, node))
        if credential is None:
            return "", None
        return (
            "revoked" if credential.revoked else "valid" if credential.expires > self._tokens.now() else "expired",
            credential.expires,
        )

    def revoke(self, partition: str, node: str) -> None:
        """Revoke the key of a node. It is refused at once, also before the revocation is durable and this returns."""

        def revoked(now: Credential | None) -> Credential:
            if now is None:
                problem = f"node {node[:63]} has no credential; `fairlead node list` shows nodes"
                raise Refused("node", problem, "missing")
            return msgspec.structs.replace(now, revoked=True, next="")

        try:
            self._change((partition, node), revoked, keep=True)
        except Refused as refused:
            if refused.code == "missing":
                raise
            raise Unserved(
                "unwritten",
                f"node {node} is revoked for now, but the server could not write that to its disk, and would forget it "
                "at its next start; make room there, and revoke the node again",
            ) from refused

    def forget(self, partition: str, nodes: Sequence[str]) -> None:
        """Remove the credentials of machines that are gone."""
        with self._changing:
            self._changes += 1
            for node in nodes:
                self._credentials.pop((partition, node), None)
                self._changed[partition, node] = self._changes
        self._write(self._changes)

    # -- the document --------------------------------------------------------------------------------------------

    def _change(self, name: Name, changed: Callable[[Credential | None], Credential], keep: bool = False) -> Credential:
        """Change a credential, write all credentials, and return the new one.

        `changed` makes the new credential from the current one, or raises. If writing fails, the change is undone
        unless `keep` is set.
        """
        with self._changing:
            before = self._credentials.get(name)
            credential = self._credentials[name] = changed(before)
            self._changes += 1
            change = self._changed[name] = self._changes
        try:
            self._write(change, spare=keep)
        except FileProblem as problem:
            with self._changing:
                if not keep and self._credentials.get(name) is credential:
                    self._changed.pop(name, None)
                    if before is None:
                        del self._credentials[name]
                    else:
                        self._credentials[name] = before
            raise Refused("disk", UNWRITTEN, "unavailable") from problem
        return credential

    def _write(self, change: int, spare: bool = False) -> None:
        """Write all credentials, unless another write has included this change already."""
        with self._writing:
            if self._written >= change:
                return
            self._write_all(spare)

    @again_on_conflict
    def _write_all(self, spare: bool) -> None:
        with self._changing:
            if self._document.is_changed():
                self._merge()
            changes, now = self._changes, self._tokens.now()
            kept = [entry for entry in self._credentials.values() if entry.expires + self.lasts > now]
        self._document.write(msgspec.json.encode(kept), spare)
        self._written = changes
        with self._changing:
            self._changed = {name: change for name, change in self._changed.items() if change > changes}

    def _merge(self) -> None:
        """Read the changes of other servers, and add the unwritten changes of this server."""
        mine = {name: self._credentials.get(name) for name in self._changed}
        self._credentials = self._stored()
        for name, credential in mine.items():
            if credential is not None:
                self._credentials[name] = credential
            else:
                self._credentials.pop(name, None)


def _revoked(node: str) -> Refused:
    return Refused("key", f"the credential of node {node} was revoked; join again with a new token")


def _problem(credential: Credential | None, node: str, key: str, now: float) -> str:
    """Return why an agent may not connect with a key; empty if it may."""
    again = f"join with a token: fairlead token create --role join --node {node}"
    if credential is None:
        return f"node {node} has not joined yet; {again}"
    if credential.revoked:
        return f"the credential of node {node} was revoked; {again}"
    if key not in (credential.key, credential.next):
        return f"node {node} has another key; {again}"
    if credential.expires <= now and key != credential.next:
        return f"the credential of node {node} has expired; {again}"
    return ""


def _server_key(document: Document) -> Key:
    """Return the key by which nodes know the server. It is created at the first start."""
    text = read_small(document, str, "remove it and let every node join again with a token")
    try:
        key = Key(text or "")
    except ValueError:
        raise FileProblem(f"{document.name}: the file is damaged; restore it from a copy") from None
    if text is None:
        document.write(msgspec.json.encode(key.text))
    return key
