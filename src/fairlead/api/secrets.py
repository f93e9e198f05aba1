"""Secrets: values that jobs name. They are in one file that its owner alone may read, and in launches to agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import PathParameter

from fairlead.api.site import USERS, Shaped, caller_of, site_of
from fairlead.api.tokens import write
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
        self._of: dict[str, dict[str, str]] = {}
        if path.exists():
            self._of = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])

    def values(self, user: str, names: tuple[str, ...]) -> dict[str, str]:
        """For a launch: what is not there any more is left out."""
        known = self._of.get(user, {})
        return {name: known[name] for name in names if name in known}

    def names(self, user: str) -> list[str]:
        return sorted(self._of.get(user, {}))

    def set(self, user: str, name: str, value: str) -> None:
        known = self._of.setdefault(user, {})
        if name not in known and len(known) >= MOST:
            raise Refused("secret", f"{user} has {MOST} secrets; remove some first", "conflict")
        known[name] = value
        self._save()

    def remove(self, user: str, name: str) -> None:
        if name not in self._of.get(user, {}):
            raise Refused("secret", f"there is no secret {shown(name)}; `fairlead secret list` shows them", "missing")
        del self._of[user][name]
        self._save()

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

    def _save(self) -> None:
        write(self._path, msgspec.json.encode(self._of))


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
