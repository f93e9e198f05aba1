"""Secrets: values that jobs refer to by name. They are stored encrypted, and sent to agents when tasks start."""

from __future__ import annotations

from pathlib import Path
from secrets import token_bytes
from threading import Lock
from time import time

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec
from fairlead.core.resources import shown
from fairlead.identity.sealed import SealedFile
from fairlead.identity.smallfile import Document, again_on_conflict
from fairlead.writer.clock import Seconds

MAX_SECRETS = 1_000
"""Largest number of secrets of one user."""
VALUE_BYTES = 64 * 1024
"""Largest size of one secret, in bytes of UTF-8."""
USER_BYTES = 2**20
"""Largest size of all secrets of one user. Small, because each change writes the secrets of all users again."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    expires: float | None = None


class Content(msgspec.Struct, frozen=True):
    """The content of the document."""

    gang_seed: bytes
    """The secret from which keys of gangs and of sessions of the web page are derived."""
    users: dict[str, dict[str, Value]] = {}


class Secrets:
    """The secrets of all users, in an encrypted document."""

    def __init__(self, place: Path | Document, key: Path, now: Seconds = time) -> None:
        """Load the secrets of a document whose key file is `key`. They expire by the clock `now`."""
        self._now = now
        self._file = SealedFile(place, key)
        self._lock = Lock()
        """Held by each change until it is written."""
        content = self._file.read()
        if content is None:
            self._content = Content(token_bytes(32))
            self._file.write(msgspec.json.encode(self._content))
        else:
            self._content = msgspec.json.decode(content, type=Content)

    def refresh(self) -> None:
        """Read the secrets again if another server has changed them."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        if self._file.is_changed():
            content = self._file.read()
            if content is not None:
                self._content = msgspec.json.decode(content, type=Content)

    @property
    def gang_seed(self) -> bytes:
        return self._content.gang_seed

    def values(self, user: str, names: tuple[str, ...]) -> dict[str, str]:
        """Return the values of a user's secrets, without those that are missing or expired."""
        valid = self._valid(user)
        return {name: valid[name].text for name in names if name in valid}

    def names(self, user: str) -> list[str]:
        return sorted(self._valid(user))

    @again_on_conflict
    def set(self, user: str, name: str, text: str, expires_in: float | None = None) -> None:
        """Store a secret. Refuse it if it is too large, or if the user's secrets are too many or too large."""
        size = len(text.encode())
        if size > VALUE_BYTES:
            raise Refused(
                "value",
                f"it has {size:,} bytes; a secret has at most {VALUE_BYTES:,}, so give the name of a file instead",
            )
        with self._lock:
            self._refresh()
            valid = self._valid(user)
            if name not in valid and len(valid) >= MAX_SECRETS:
                raise Refused("secret", f"{user} has {MAX_SECRETS} secrets; remove some first", "conflict")
            others = sum(len(value.text.encode()) for other, value in valid.items() if other != name)
            if others + size > USER_BYTES:
                raise Refused(
                    "value",
                    f"the other secrets of {user} have {others:,} bytes and this one {size:,}; all secrets of a user "
                    f"have at most {USER_BYTES:,}, so remove some first",
                    "conflict",
                )
            expires = None if expires_in is None else self._now() + expires_in
            self._save(user, {**valid, name: Value(text, expires)})

    @again_on_conflict
    def remove(self, user: str, name: str) -> None:
        with self._lock:
            self._refresh()
            left = self._valid(user)
            if left.pop(name, None) is None:
                raise Refused(
                    "secret", f"there is no secret {shown(name)}; `fairlead secret list` shows them", "missing"
                )
            self._save(user, left)

    def check(self, spec: JobSpec, caller: str) -> None:
        """Refuse a job that uses secrets which its user does not have, or that another user submits.

        The command of a task can print its secrets, so it has to come from the owner of the secrets.
        """
        user = spec.user
        used = [(at, variable, name) for at, stage in enumerate(spec.stages) for variable, name in stage.secrets]
        valid = self._valid(user) if used else {}
        for at, variable, name in used:
            field = f"stages[{at}].secrets.{variable}"
            if user != caller:
                problem = (
                    f"{caller} submits this job in the name of {user}, and the secrets of {user} are for jobs that"
                )
                raise Refused(field, f"{problem} {user} submits; leave them out, or have {user} submit it", "forbidden")
            if name not in valid:
                problem = f"{user} has no secret {shown(name)}; set it with `fairlead secret set {name}`"
                raise Refused(field, problem, "unknown")

    def _valid(self, user: str) -> dict[str, Value]:
        """Return the secrets of a user that have not expired."""
        now, stored = self._now(), self._content.users.get(user, {})
        return {name: value for name, value in stored.items() if value.expires is None or value.expires > now}

    def _save(self, user: str, values: dict[str, Value]) -> None:
        """Replace the secrets of a user. If writing fails, the old ones stay in use."""
        users = {**self._content.users, user: values}
        if not values:
            del users[user]
        changed = Content(self._content.gang_seed, users)
        self._file.write(msgspec.json.encode(changed))
        self._content = changed
