"""The agent's identity: the key of its node, and the public key of the server that admitted it.

Both are in one file in the agent's directory. Only the agent's user may read it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from fairlead.agent.session import Channel, Refused
from fairlead.wire.agent_messages import VERSION, Challenge, Knock, NewKey, Proof, Refusal, decode_from_server, encode
from fairlead.wire.agent_messages import this_machine as boot_of_this_machine
from fairlead.wire.handshake import Exchange, Key, decoded, encoded, is_signed, nonce, split_token

FILE = "identity"
USER_TOKEN = "fl_"
"""The prefix of tokens that are not join tokens."""


class StoredKey(msgspec.Struct, frozen=True):
    key: str
    server: str = ""


class Identity:
    """Proves to the server which node connects."""

    def __init__(self, directory: Path, node: str, token: str) -> None:
        """Read the identity in `directory`. `token` is a join token, or empty if the node has joined before."""
        self._file = directory / FILE
        self._node = node
        stored = _read(self._file)
        self._key = Key(stored.key if stored is not None else "")
        self._secret, self._server = "", decoded(stored.server) if stored is not None else b""
        create = f"fairlead token create --role join --node {node}"
        if token:
            try:
                self._secret, self._server = split_token(token)
            except ValueError as problem:
                if token.startswith(USER_TOKEN):
                    cause = "this is the token of a user, and an agent needs a join token; create one"
                else:
                    cause = f"the join token is damaged ({problem}); copy it again, or create another"
                raise Refused(f"{cause}: {create}", True) from None
        if not self._server:
            cause = "this machine has not joined yet, and there is no join token; give one with --token-file"
            raise Refused(f"{cause}: {create}", True)
        if stored is None:
            self._write(self._key)
        self._instance = _instance(directory)
        self._exchange: Exchange | None = None
        self._new: Key | None = None

    async def prove(self, channel: Channel) -> None:
        """Check that the server is the one that admitted this node, and prove this node's identity to it."""
        self._exchange = await prove(channel, self._node, self._key, self._server, self._instance, self._secret)

    def joined(self) -> None:
        """Store the public key of the server after it has admitted this node."""
        stored = _read(self._file)
        if stored is None or stored.server != encoded(self._server):
            self._write(self._key)

    def new_key(self) -> NewKey:
        """Make a key for later connections, signed for this connection."""
        assert self._exchange is not None
        self._new = Key()
        return NewKey(self._new.public, self._new.sign(self._exchange.for_new_key(self._new.public)))

    def renewed(self) -> None:
        """Switch to the new key. If it cannot be written, the old key stays, which the server still accepts."""
        if self._new is not None:
            self._write(self._new)
            self._key, self._new = self._new, None

    def _write(self, key: Key) -> None:
        new_file = self._file.with_suffix(".new")
        with open(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(StoredKey(key.text, encoded(self._server))))
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self._file)


async def prove(channel: Channel, node: str, key: Key, server: bytes, instance: str = "", secret: str = "") -> Exchange:
    """Authenticate both ends of a new connection.

    `server` is the server's public key, `secret` that of a join token, `instance` the id of the agent's directory.
    """
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
            "the server has another key than the one that this machine is to join; check the address, or if the server "
            f"was installed again, join with a new token: fairlead token create --role join --node {node}",
            True,
            may_pass=True,
        )
    signature = key.sign(exchange.for_node(key.public, instance))
    await channel.send(encode(Proof(key.public, signature, instance, secret)))
    return exchange


def _read(file: Path) -> StoredKey | None:
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=StoredKey)
        Key(stored.key), decoded(stored.server)  # raise `ValueError` if they are damaged
        return stored
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, ValueError):
        raise Refused(f"{file}: the file is damaged; remove it and join again with a new token", True) from None


def _instance(directory: Path) -> str:
    """Return an id of this directory for this boot of the machine. A copy of the directory has another id."""
    status = directory.stat()
    return hashlib.sha256(f"{boot_of_this_machine()} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:32]
