"""The agent's identity: the key of its node, and the public key of the server that admitted it.

Both are in one file of the agent's directory, which the agent's user alone may read.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from fairlead.agent.session import Channel, Refused
from fairlead.wire.agent import VERSION, Challenge, Knock, NewKey, Proof, Refusal, decode_from_server, encode
from fairlead.wire.agent import this_machine as boot_of_this_machine
from fairlead.wire.identity import Exchange, Key, decoded, encoded, is_signed, nonce, split_token

FILE = "identity"


class StoredKey(msgspec.Struct, frozen=True):
    """What the file has."""

    key: str
    server: str = ""


class Identity:
    """Opens connections for a node. `token` is a join token, or empty if the node has joined before."""

    def __init__(self, directory: Path, node: str, token: str) -> None:
        self._file = directory / FILE
        self._node = node
        kept = _read(self._file)
        self._key = Key(kept.key if kept is not None else "")
        try:
            self._secret, self._server = split_token(token) if token else ("", decoded(kept.server) if kept else b"")
        except ValueError as problem:
            raise Refused(f"the join token is damaged ({problem}); copy it anew", True) from None
        if not self._server:
            raise Refused(
                "this machine has not joined yet, and there is no join token; "
                f"give one with --token-file: fairlead token create --role join --node {node}",
                True,
            )
        if kept is None:
            self._write(self._key)
        self._instance = _instance(directory)
        self._exchange: Exchange | None = None
        self._new: Key | None = None

    async def prove(self, channel: Channel) -> None:
        """Have the server prove that it is the one that admitted this node, and prove to it which node this is."""
        self._exchange = await prove(channel, self._node, self._key, self._server, self._instance, self._secret)

    def joined(self) -> None:
        """Keep the server's key: it has admitted this node."""
        kept = _read(self._file)
        if kept is None or kept.server != encoded(self._server):
            self._write(self._key)

    def new_key(self) -> NewKey:
        """Make a key for later connections, and sign this one with it."""
        assert self._exchange is not None
        self._new = Key()
        return NewKey(self._new.public, self._new.sign(self._exchange.for_new_key(self._new.public)))

    def renewed(self) -> None:
        """Use the new key from now on. If it cannot be written, the old one stays, which still counts."""
        if self._new is not None:
            self._write(self._new)
            self._key, self._new = self._new, None

    def _write(self, key: Key) -> None:
        fresh = self._file.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(StoredKey(key.text, encoded(self._server))))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)


async def prove(channel: Channel, node: str, key: Key, server: bytes, instance: str = "", secret: str = "") -> Exchange:
    """Open a connection for a node, with a server whose public key is known. `secret` is that of a join token."""
    ours = nonce()
    await channel.send(encode(Knock(VERSION, node, ours)))
    challenge = decode_from_server(await channel.recv())
    if isinstance(challenge, Refusal):
        raise Refused(challenge.problem, challenge.final)
    if not isinstance(challenge, Challenge):
        raise Refused("the server did not answer the knock; is it a Fairlead server of another version?", False)
    exchange = Exchange(server, challenge.partition, node, ours, challenge.nonce)
    if challenge.key != server or not is_signed(server, challenge.signature, exchange.for_server()):
        raise Refused(
            "the server has another key than the one that this machine is to join; "
            "if it was set up anew, start the agent with a new join token (--token-file)",
            False,
        )
    signature = key.sign(exchange.for_node(key.public, instance))
    await channel.send(encode(Proof(key.public, signature, instance, secret)))
    return exchange


def _read(file: Path) -> StoredKey | None:
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=StoredKey)
        Key(kept.key)
        return kept
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, ValueError):
        raise Refused(f"{file}: the file is damaged; remove it and join again with a new token", True) from None


def _instance(directory: Path) -> str:
    """The same for one directory until its machine starts anew; another one for a copy of it."""
    found = directory.stat()
    return hashlib.sha256(f"{boot_of_this_machine()} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:32]
