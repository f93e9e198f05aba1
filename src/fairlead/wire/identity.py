"""How an agent and the server prove to each other that they have their keys: Ed25519 signatures of nonces.

All that a signature must not be usable for elsewhere is in what is signed: the purpose, the protocol's version, the
server's key, partition and node, and both nonces of the connection.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fairlead.wire.agent import VERSION

NONCE_BYTES = 32
KEY_BYTES = 32


class Exchange(NamedTuple):
    """What both ends of one connection know before either proves anything."""

    server: bytes
    """The server's public key."""
    partition: str
    node: str
    agent_nonce: bytes
    server_nonce: bytes

    def for_server(self) -> bytes:
        """What the server signs."""
        return self._signed("fairlead server")

    def for_node(self, key: bytes, instance: str) -> bytes:
        """What a node signs to open a connection."""
        return self._signed("fairlead node", key, instance)

    def for_new_key(self, key: bytes) -> bytes:
        """What a node signs with a new key to have it admitted."""
        return self._signed("fairlead new key", key)

    def _signed(self, purpose: str, *more: bytes | str) -> bytes:
        return msgspec.msgpack.encode((purpose, VERSION, *self, *more))


class Key:
    """A private key. `text` is what is written to a file."""

    def __init__(self, text: str = "") -> None:
        """Without a text a new one is made. Raises `ValueError` for a text that is none."""
        self._key = Ed25519PrivateKey.from_private_bytes(decoded(text)) if text else Ed25519PrivateKey.generate()
        self.text = encoded(self._key.private_bytes_raw())
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def is_signed(key: bytes, signature: bytes, data: bytes) -> bool:
    """True if `signature` of `data` was made with the private part of a public key."""
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
    """Raises `ValueError` for what is no key."""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return key


def join_token(secret: str, server: bytes) -> str:
    """A join token names the key of its server, so that an agent shows it to no other."""
    return f"{secret}.{encoded(server)}"


def split_token(token: str) -> tuple[str, bytes]:
    """The secret of a join token, and the key of its server. Raises `ValueError` for what is none."""
    secret, dot, server = token.strip().partition(".")
    if not dot or not secret:
        raise ValueError("a join token has two parts with a dot between")
    return secret, decoded(server)
