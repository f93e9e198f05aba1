"""Sessions of the web page. A request with a token opens a session; later requests carry a cookie and a key instead.

Scripts cannot read the cookie, but the browser sends it to every port of the host. The page stores the key, which only
pages of the same origin can read. A request needs both. So neither a page of another site nor another server on the
same host can act for the user. The server stores no sessions: the cookie has the digest of the token, and a signature
of the server over the cookie and the key. A session ends at the latest with its token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec

from fairlead.identity.tokens import Token, Tokens

LASTS = 12 * 3600.0
"""Seconds that a session lasts."""
HEADER = b"fairlead-session"


class Sessions:
    """Opens sessions and finds their tokens."""

    def __init__(self, tokens: Tokens, seed: Callable[[], bytes]) -> None:
        """`seed` returns a secret, which all servers of a cluster share, for signatures."""
        self._tokens = tokens
        self._seed = seed
        self._ended: dict[str, float] = {}
        """Signatures of sessions that were ended before their expiry → their expiry."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. It differs between clusters, because all ports of a host get the same cookies."""
        return f"fairlead-{self._mac('name')[:8]}"

    def open(self, token: Token) -> tuple[str, str, float]:
        """Return the value of the cookie, the key, and the expiry of a new session."""
        key = secrets.token_urlsafe(32)
        expires = self._tokens.now() + LASTS
        if token.expires is not None:
            expires = min(expires, token.expires)
        until = str(int(expires))
        return f"{until}.{token.digest}.{self._mac(until, token.digest, key)}", key, float(until)

    def find(self, cookies: str, key: str) -> Token | None:
        """Return the token of a valid session, with the expiry of the session; None if the session is not valid."""
        found = self._parts(cookies)
        if found is None or not key:
            return None
        until, digest, mac = found
        sealed = self._mac(until, digest, key)
        if not hmac.compare_digest(mac.encode(errors="replace"), sealed.encode()) or sealed in self._ended:
            return None
        token = self._tokens.find_digest(digest)
        if token is None or float(until) <= self._tokens.now():
            return None
        return msgspec.structs.replace(token, expires=float(until))

    def end(self, cookies: str) -> None:
        """End the session of a cookie, which `find` has found, before its expiry."""
        found = self._parts(cookies)
        if found is not None:
            now = self._tokens.now()
            self._ended = {mac: until for mac, until in self._ended.items() if until > now}
            self._ended[found[2]] = float(found[0])

    def _parts(self, cookies: str) -> tuple[str, str, str] | None:
        """Return expiry, digest of the token, and signature of the session in a cookie; None if there is none."""
        # Other servers of the host set cookies too. Parsing them all is slow, and strangers may send some.
        _, _, rest = f"; {cookies}".partition(f"; {self.cookie}=")
        until, _, rest = rest.partition(";")[0].partition(".")
        digest, _, mac = rest.partition(".")
        return (until, digest, mac) if mac else None

    def _mac(self, *parts: str) -> str:
        text = "\n".join(("web session", *parts)).encode(errors="replace")
        return hmac.digest(self._seed(), text, hashlib.sha256).hex()
