"""Secrets: values that jobs name. They are in one file that its owner alone may read, and in launches to agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import PathParameter

from fairlead.api.site import USERS, Shaped, caller_of, site_of
from fairlead.api.smallfile import read_small, write_small
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import shown
from fairlead.wire import api as wire

MOST = 1_000
"""Secrets of one user."""

Ask = Request[Any, Any, Any]
SecretName = Annotated[str, PathParameter(max_length=63)]


class Secrets:
    """The secrets of all users, by user and name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        """Held by each change until the file has it."""
        known = read_small(path, dict[str, dict[str, str]], "remove it and have users set their secrets again")
        self._of = known or {}

    def values(self, user: str, names: tuple[str, ...]) -> dict[str, str]:
        """For a launch: what is not there any more is left out."""
        known = self._of.get(user, {})
        return {name: known[name] for name in names if name in known}

    def names(self, user: str) -> list[str]:
        return sorted(self._of.get(user, {}))

    def set(self, user: str, name: str, value: str) -> None:
        with self._lock:
            known = self._of.get(user, {})
            if name not in known and len(known) >= MOST:
                raise Refused("secret", f"{user} has {MOST} secrets; remove some first", "conflict")
            self._save(user, {**known, name: value})

    def remove(self, user: str, name: str) -> None:
        with self._lock:
            left = dict(self._of.get(user, {}))
            if left.pop(name, None) is None:
                raise Refused(
                    "secret", f"there is no secret {shown(name)}; `fairlead secret list` shows them", "missing"
                )
            self._save(user, left)

    def check(self, spec: JobSpec) -> None:
        """That a job names only secrets that its user has: else its tasks would start without them."""
        for at, stage in enumerate(spec.stages):
            for variable, name in stage.secrets:
                if name not in self._of.get(spec.user, {}):
                    raise Refused(
                        f"stages[{at}].secrets.{variable}",
                        f"{spec.user} has no secret {shown(name)}; set it with `fairlead secret set {name}`",
                        "unknown",
                    )

    def _save(self, user: str, values: dict[str, str]) -> None:
        """Write the secrets and then use them; if they cannot be written, the earlier ones stay."""
        changed = {**self._of, user: values}
        if not values:
            del changed[user]
        write_small(self._path, msgspec.json.encode(changed))
        self._of = changed


@get("/secrets", operation_id="secrets", guards=[USERS], summary="The caller's secrets")
async def secrets(request: Ask) -> wire.Secrets:
    """Their names. Values are told to nobody but the tasks of the caller's jobs."""
    return wire.Secrets(secrets=site_of(request).secrets.names(caller_of(request).user))


@put("/secrets/{secret:str}", operation_id="setSecret", guards=[USERS], summary="Set a secret")
async def set_secret(request: Ask, secret: SecretName, data: Annotated[Any, Shaped(wire.SecretDocument)]) -> wire.Done:
    """Jobs of the caller that name it get the value when they start."""
    read = Reader(data, "", "a secret")
    value = read.text("value")
    read.close()
    check_name(secret, "secret")
    await asyncio.to_thread(site_of(request).secrets.set, caller_of(request).user, secret, value)
    return wire.Done()


@delete("/secrets/{secret:str}", operation_id="removeSecret", guards=[USERS], status_code=200)
async def remove_secret(request: Ask, secret: SecretName) -> wire.Done:
    """Tasks that start later do not get it any more."""
    await asyncio.to_thread(site_of(request).secrets.remove, caller_of(request).user, secret)
    return wire.Done()


HANDLERS = [secrets, set_secret, remove_secret]
