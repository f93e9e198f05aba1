"""Tokens: who may ask, and in which role. Only digests are kept, in one file that its owner alone may read."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from threading import Lock
from time import time

import msgspec

from fairlead.api.smallfile import read_small, write_small
from fairlead.core.errors import Refused
from fairlead.wire.api import Role

ROLES: tuple[Role, ...] = ("user", "operator", "admin", "agent")
MAX_TOKENS = 100_000


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    digest: str
    role: Role
    user: str
    groups: tuple[str, ...] = ()
    node: str = ""
    note: str = ""
    created: float = 0.0
    expires: float | None = None

    @property
    def operator(self) -> bool:
        return self.role in ("operator", "admin")


class Tokens:
    """The tokens of one control plane, which alone writes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        """Held by each change until the file has it."""
        known = read_small(path, list[Token], "remove it: all tokens are gone then, and the next start makes new ones")
        self._by_digest = {token.digest: token for token in known or ()}

    def find(self, secret: str) -> Token | None:
        """Whose secret this is. It is long and random, so a plain digest is as good as a slow one."""
        token = self._by_digest.get(_digest(secret))
        if token is None or (token.expires is not None and token.expires <= time()):
            return None
        return token

    def all(self) -> list[Token]:
        return _in_order(self._by_digest)

    def create(
        self,
        role: Role,
        user: str,
        groups: tuple[str, ...] = (),
        node: str = "",
        note: str = "",
        expires_in: float | None = None,
        id: str = "",
    ) -> tuple[str, Token]:
        """A new token, and its secret, which is kept nowhere."""
        secret = f"fl_{secrets.token_urlsafe(32)}"
        now = time()
        token = Token(
            id=id or secrets.token_hex(6),
            digest=_digest(secret),
            role=role,
            user=user,
            groups=groups,
            node=node,
            note=note,
            created=now,
            expires=None if expires_in is None else now + expires_in,
        )
        with self._lock:
            if len(self._by_digest) >= MAX_TOKENS:
                raise Refused("token", f"there are {MAX_TOKENS} tokens; revoke some first", "conflict")
            self._save({**self._by_digest, token.digest: token})
        return secret, token

    def revoke(self, id: str) -> None:
        with self._lock:
            left = {digest: token for digest, token in self._by_digest.items() if token.id != id}
            if len(left) == len(self._by_digest):
                raise Refused("token", f"there is no token {id[:40]!r}; `fairlead token list` shows them", "unknown")
            self._save(left)

    def standing(self, file: Path, id: str, role: Role, user: str, note: str) -> str:
        """The secret of a token that stands in a file of the data directory; it is made anew if that is gone."""
        if file.exists():
            secret = file.read_text().strip()
            if self.find(secret) is not None:
                return secret
        if any(token.id == id for token in self._by_digest.values()):
            self.revoke(id)
        secret, _ = self.create(role, user, note=note, id=id)
        write_small(file, secret.encode() + b"\n")
        return secret

    def _save(self, changed: dict[str, Token]) -> None:
        """Write the tokens and then use them; if they cannot be written, the earlier ones stay."""
        write_small(self._path, msgspec.json.format(msgspec.json.encode(_in_order(changed))))
        self._by_digest = changed


def _in_order(tokens: dict[str, Token]) -> list[Token]:
    return sorted(tokens.values(), key=lambda token: (token.created, token.id))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
