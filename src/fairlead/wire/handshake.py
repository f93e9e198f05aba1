"""Mutual authentication of agent and server with keys: Ed25519 signatures of nonces.

The signed data contains the purpose, the protocol version, the server's key, partition and node, and both nonces of the
connection, so that a signature cannot be used for anything else.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fairlead.wire.agent_messages import VERSION

NONCE_BYTES = 32
KEY_BYTES = 32


class Exchange(NamedTuple):
    """Data that both ends of a connection know before authentication."""

    server: bytes
    """The server's public key."""
    partition: str
    node: str
    agent_nonce: bytes
    server_nonce: bytes

    def for_server(self) -> bytes:
        """Return the data that the server signs."""
        return self._signed("fairlead server")

    def for_node(self, key: bytes, instance: str) -> bytes:
        """Return the data that a node signs to open a connection."""
        return self._signed("fairlead node", key, instance)

    def for_new_key(self, key: bytes) -> bytes:
        """Return the data that a node signs with its new key, so that the server admits the key."""
        return self._signed("fairlead new key", key)

    def _signed(self, purpose: str, *more: bytes | str) -> bytes:
        return msgspec.msgpack.encode((purpose, VERSION, *self, *more))


class Key:
    """A private key. `text` is its form in a file."""

    def __init__(self, text: str = "") -> None:
        """Read the key from `text`, or create a new one if it is empty. Raise `ValueError` if `text` is not a key."""
        self._key = Ed25519PrivateKey.from_private_bytes(decoded(text)) if text else Ed25519PrivateKey.generate()
        self.text = encoded(self._key.private_bytes_raw())
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def is_signed(key: bytes, signature: bytes, data: bytes) -> bool:
    """True if `data` was signed with the private key that belongs to the public `key`."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def encoded(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """Return the key in a text. Raise `ValueError` if the text is not a key."""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return key


def join_token(secret: str, server: bytes) -> str:
    """Return a join token. It contains the key of its server, so that an agent sends it only to that server."""
    return f"{secret}.{encoded(server)}"


def split_token(token: str) -> tuple[str, bytes]:
    """Return the secret of a join token and the key of its server. Raise `ValueError` if it is not a join token."""
    secret, dot, server = token.strip().partition(".")
    if not dot or not secret:
        raise ValueError("a join token has two parts with a dot between")
    return secret, decoded(server)
