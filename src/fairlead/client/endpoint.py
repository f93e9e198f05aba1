"""Where the server is, and with which token: from the environment, or from the data directory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

URL, TOKEN, AUTHORITY, DATA = "FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_CA", "FAIRLEAD_DATA"
INSECURE = "FAIRLEAD_INSECURE"


class NotFound(Exception):
    """Nobody says where the server is."""


class Endpoint(msgspec.Struct, frozen=True):
    url: str
    token: str = ""
    authority: str = ""
    """A file with the certificates to trust, instead of the machine's."""
    insecure: bool = False
    """True to send the token to another machine without TLS."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What a server writes into its data directory while it runs."""

    pid: int
    url: str
    authority: str = ""


def data_directory() -> Path:
    """Where state is kept unless said otherwise."""
    if os.environ.get(DATA):
        return Path(os.environ[DATA])
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "fairlead"


def running(directory: Path) -> Running | None:
    """The server that runs on a data directory, by its own word."""
    try:
        return msgspec.json.decode((directory / "server.json").read_bytes(), type=Running)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def find_endpoint(directory: Path | None = None) -> Endpoint:
    """The server of `FAIRLEAD_URL`, or the one on the data directory."""
    directory = directory or data_directory()
    url, token = os.environ.get(URL, ""), os.environ.get(TOKEN, "")
    authority = os.environ.get(AUTHORITY, "")
    if not url:
        found = running(directory)
        if found is None:
            raise NotFound(f"no server runs on {directory}; start one with `fairlead up`, or set {URL} and {TOKEN}")
        url, authority = found.url, authority or found.authority
        if not token:
            try:
                token = (directory / "token").read_text().strip()
            except OSError as problem:
                raise NotFound(f"{directory / 'token'}: {problem.strerror}; set {TOKEN} to a token of yours") from None
    return Endpoint(url.rstrip("/"), token, authority, os.environ.get(INSECURE) == "1")
