"""Secrets: values that jobs name. They are in one encrypted file, and in launches to agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from secrets import token_bytes
from threading import Lock
from time import time
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import PathParameter

from fairlead.api.context import USERS, Shaped, caller_of, services_of
from fairlead.api.sealed import SealedFile
from fairlead.api.walltime import Seconds
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import SECOND, shown
from fairlead.wire import api as wire

MAX_SECRETS = 1_000
"""Secrets of one user."""
VALUE_BYTES = 64 * 1024
"""Of one secret, in UTF-8."""
USER_BYTES = 2**20
"""Of all secrets of one user. Each change writes the file of all users."""

HttpRequest = Request[Any, Any, Any]
SecretName = Annotated[str, PathParameter(max_length=63)]


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    expires: float | None = None


class Content(msgspec.Struct, frozen=True):
    """All of the file."""

    gang_seed: bytes
    """What the keys of gangs are derived from."""
    users: dict[str, dict[str, Value]] = {}


class Secrets:
    """The secrets of all users, by user and name, in an encrypted file."""

    def __init__(self, path: Path, key: Path, now: Seconds = time) -> None:
        """`now` is the clock by which secrets expire."""
        self._now = now
        self._file = SealedFile(path, key)
        self._lock = Lock()
        """Held by each change until the file has it."""
        content = self._file.read()
        if content is None:
            self._content = Content(token_bytes(32))
            self._file.write(msgspec.json.encode(self._content))
        else:
            self._content = msgspec.json.decode(content, type=Content)

    @property
    def gang_seed(self) -> bytes:
        return self._content.gang_seed

    def values(self, user: str, names: tuple[str, ...]) -> dict[str, str]:
        """For a launch: what is not there any more is left out."""
        known = self._known(user)
        return {name: known[name].text for name in names if name in known}

    def names(self, user: str) -> list[str]:
        return sorted(self._known(user))

    def set(self, user: str, name: str, value: str, expires_in: float | None = None) -> None:
        size = len(value.encode())
        if size > VALUE_BYTES:
            raise Refused(
                "value",
                f"it has {size:,} bytes; a secret has at most {VALUE_BYTES:,}, so give the name of a file instead",
            )
        with self._lock:
            known = self._known(user)
            if name not in known and len(known) >= MAX_SECRETS:
                raise Refused("secret", f"{user} has {MAX_SECRETS} secrets; remove some first", "conflict")
            others = sum(len(each.text.encode()) for other, each in known.items() if other != name)
            if others + size > USER_BYTES:
                raise Refused(
                    "value",
                    f"the other secrets of {user} have {others:,} bytes and this one {size:,}; all secrets of a user "
                    f"have at most {USER_BYTES:,}, so remove some first",
                    "conflict",
                )
            expires = None if expires_in is None else self._now() + expires_in
            self._save(user, {**known, name: Value(value, expires)})

    def remove(self, user: str, name: str) -> None:
        with self._lock:
            left = self._known(user)
            if left.pop(name, None) is None:
                raise Refused(
                    "secret", f"there is no secret {shown(name)}; `fairlead secret list` shows them", "missing"
                )
            self._save(user, left)

    def check(self, spec: JobSpec, caller: str) -> None:
        """Refuse a job that names secrets that its user does not have, or that another user submits.

        What a task gets, its command can print: the secrets of a user are for commands that this user wrote.
        """
        known: dict[str, Value] | None = None
        for at, stage in enumerate(spec.stages):
            for variable, name in stage.secrets:
                if spec.user != caller:
                    raise Refused(
                        f"stages[{at}].secrets.{variable}",
                        f"{caller} submits this job in the name of {spec.user}, and the secrets of {spec.user} are for "
                        f"jobs that {spec.user} submits; leave them out, or have {spec.user} submit it",
                        "forbidden",
                    )
                known = self._known(spec.user) if known is None else known
                if name not in known:
                    raise Refused(
                        f"stages[{at}].secrets.{variable}",
                        f"{spec.user} has no secret {shown(name)}; set it with `fairlead secret set {name}`",
                        "unknown",
                    )

    def _known(self, user: str) -> dict[str, Value]:
        now, known = self._now(), self._content.users.get(user, {})
        return {name: value for name, value in known.items() if value.expires is None or value.expires > now}

    def _save(self, user: str, values: dict[str, Value]) -> None:
        """Write the secrets and then use them; if they cannot be written, the earlier ones stay."""
        users = {**self._content.users, user: values}
        if not values:
            del users[user]
        changed = Content(self._content.gang_seed, users)
        self._file.write(msgspec.json.encode(changed))
        self._content = changed


@get("/secrets", operation_id="secrets", guards=[USERS], summary="The caller's secrets")
async def secrets(request: HttpRequest) -> wire.Secrets:
    """Their names. Values are told to nobody but the tasks of the caller's jobs."""
    return wire.Secrets(secrets=services_of(request).secrets.names(caller_of(request).user))


@put("/secrets/{secret:str}", operation_id="setSecret", guards=[USERS], summary="Set a secret")
async def set_secret(
    request: HttpRequest, secret: SecretName, data: Annotated[Any, Shaped(wire.SecretDocument)]
) -> wire.Done:
    """Jobs of the caller that name it get the value when they start, until it expires, if it does.

    A value has at most 65,536 bytes, and all values of one user 1,048,576, in UTF-8.
    """
    read = Reader(data, "", "a secret")
    value = read.text("value")
    expires = read.optional_duration("expires_in")
    read.close()
    check_name(secret, "secret")
    if not value:
        raise Refused(
            "value", f"it is empty; give a value, or remove the secret with `fairlead secret remove {secret}`"
        )
    if expires == 0:
        raise Refused(
            "expires_in", "0 would set a secret that has expired already; leave it out, or give a longer time"
        )
    expires_in = None if expires is None else expires / SECOND
    await asyncio.to_thread(services_of(request).secrets.set, caller_of(request).user, secret, value, expires_in)
    return wire.Done()


@delete("/secrets/{secret:str}", operation_id="removeSecret", guards=[USERS], status_code=200)
async def remove_secret(request: HttpRequest, secret: SecretName) -> wire.Done:
    """Tasks that start later do not get it any more."""
    await asyncio.to_thread(services_of(request).secrets.remove, caller_of(request).user, secret)
    return wire.Done()


HANDLERS = [secrets, set_secret, remove_secret]
