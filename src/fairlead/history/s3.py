"""Stores output in an S3 object store. Needs the extra `fairlead[s3]`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fairlead.history.stores import Stored, emptied

Result = TypeVar("Result")
SCHEME = "s3://"
CHECK = "fairlead-check"
"""The object that the server writes when it starts, to check the settings."""
BEYOND_END = "416 Range Not Satisfiable"
RETRIES = 3
RETRY_SECONDS = 20
REMOVED_AT_ONCE = 1_000


class Unusable(Exception):
    """The object store cannot be used. The message says why, and what to do."""


class ObjectStore:
    """Keeps files as objects of a bucket."""

    def __init__(self, url: str, incoming: Path, endpoint: str = "") -> None:
        """`url` is s3://BUCKET/PREFIX. `endpoint` is the address of the service, by default that of AWS.

        Credentials come from the environment, from the files of the AWS command line, or from the machine's role.
        """
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise Unusable(f"{url} needs another package; install it with: pip install 'fairlead[s3]'") from None
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not bucket or "?" in url:
            raise Unusable(f"{url} is not the address of a bucket; write s3://BUCKET or s3://BUCKET/PREFIX")
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        parts = urlsplit(endpoint)
        if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise Unusable(
                f"{endpoint} is not the address of a service; write https://HOST:PORT with --outputs-endpoint"
            )
        self._url = url
        self._endpoint = endpoint
        self._problem = BaseError
        self._api: Any = obstore
        settings: dict[str, Any] = _profile()
        if endpoint:
            settings["endpoint"] = endpoint
        try:
            self._store: Any = S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                client_options={"allow_http": parts.scheme == "http"},
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
                **settings,
            )
        except (BaseError, ValueError, TypeError) as problem:
            raise Unusable(f"{url}: {_cause(problem)}") from None
        self.incoming = emptied(incoming)
        self._check()

    def settle(self, keys: Iterable[str]) -> None:
        """Do nothing: an object that was put is durable."""

    def put(self, key: str, file: Path, durable: bool) -> None:
        self._call(lambda: self._api.put(self._store, key, file))

    def size(self, key: str) -> int | None:
        try:
            return int(self._call(lambda: self._api.head(self._store, key))["size"])
        except FileNotFoundError:
            return None

    def read(self, key: str, offset: int, most: int) -> bytes:
        try:
            return bytes(self._call(lambda: self._api.get_range(self._store, key, start=offset, length=most)))
        except FileNotFoundError:
            return b""  # it was removed meanwhile
        except OSError as problem:
            if BEYOND_END in str(problem) or "InvalidRange" in str(problem):
                return b""
            raise

    def renew(self, key: str) -> None:
        self._call(lambda: self._api.copy(self._store, key, key))

    def all(self) -> Iterator[Stored]:
        for page in self._call(lambda: self._api.list(self._store)):
            for item in page:
                if item["path"] != CHECK:
                    yield Stored(item["last_modified"].timestamp(), item["size"], item["path"])

    def remove(self, keys: Iterable[str]) -> None:
        waiting = list(keys)
        for start in range(0, len(waiting), REMOVED_AT_ONCE):
            some = waiting[start : start + REMOVED_AT_ONCE]
            self._call(lambda some=some: self._api.delete(self._store, some))  # type: ignore[misc]

    def _check(self) -> None:
        """Write and list an object, so that wrong settings are noticed when the server starts."""
        try:
            with NamedTemporaryFile(dir=self.incoming) as file:
                self.put(CHECK, Path(file.name), durable=True)
            self._call(lambda: next(iter(self._api.list(self._store)), None))
        except OSError as problem:
            raise Unusable(f"{self._url}{self._at} cannot be used: {problem}; {_remedy(str(problem))}") from None

    @property
    def _at(self) -> str:
        return f" at {self._endpoint}" if self._endpoint else ""

    def _call(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except FileNotFoundError as problem:
            raise FileNotFoundError(_cause(problem)) from None
        except self._problem as problem:
            raise OSError(_cause(problem)) from None


def _profile() -> dict[str, str]:
    """Return the credentials and the region of the profile in the files of the AWS command line.

    As with the AWS command line, environment variables override the files.
    """
    profile = os.environ.get("AWS_PROFILE", "default")
    folder = Path.home() / ".aws"
    found: dict[str, str] = {}
    if "AWS_ACCESS_KEY_ID" not in os.environ:
        file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials")
        found |= _section(file, profile, "access_key_id", "secret_access_key", "session_token")
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ:
        file = Path(os.environ.get("AWS_CONFIG_FILE") or folder / "config")
        found |= _section(file, profile if profile == "default" else f"profile {profile}", "region")
    return found


def _section(file: Path, section: str, *keys: str) -> dict[str, str]:
    """Return the given keys of a section of a file, if they exist."""
    reader = ConfigParser(interpolation=None)
    try:
        reader.read(file)
    except ConfigError as problem:
        raise Unusable(f"{file}: {problem.message}; correct the file") from None
    values = reader[section] if reader.has_section(section) else {}
    return {key: value for key in keys if (value := values.get(key) or values.get(f"aws_{key}"))}


def _cause(problem: BaseException) -> str:
    """Return the first sentence of an error and the error code of the service, without details of the library."""
    text = str(problem).partition("\n\nDebug source")[0]
    code = re.search(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", text, re.DOTALL)
    if code:
        return ": ".join(word for word in code.groups() if word)
    return " ".join(text.split())[:500]


def _remedy(cause: str) -> str:
    if "NoSuchBucket" in cause:
        return "create the bucket, or name another one with --outputs"
    if any(word in cause for word in ("Access", "Signature", "Token", "403", "401", "credential", "169.254")):
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to credentials that may write there"
    return "check --outputs, --outputs-endpoint and the network"
