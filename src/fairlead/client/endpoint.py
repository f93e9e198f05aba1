"""Finds the URL of the server and a token, in the environment or in the data directory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

URL, TOKEN, AUTHORITY, DATA = "FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_CA", "FAIRLEAD_DATA"
INSECURE = "FAIRLEAD_INSECURE"


class NotFound(Exception):
    """Raised if the address or the token of the server is not known."""


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a server, the token to use there, and TLS settings."""

    url: str
    """One URL, or the URLs of several servers of a cluster, separated by commas: the client finds the leader."""
    token: str = ""
    authority: str = ""
    """A file with the certificates to trust instead of the machine's."""
    insecure: bool = False
    """True to send the token to another machine without TLS."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file `server.json`, which is in the data directory of a server while it runs."""

    pid: int
    url: str
    authority: str = ""


def data_directory() -> Path:
    """Return the data directory: FAIRLEAD_DATA, or the default for this user."""
    if os.environ.get(DATA):
        return Path(os.environ[DATA])
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "fairlead"


def running(directory: Path) -> Running | None:
    """Return the server that runs on a data directory, according to its file there; None if there is no file."""
    try:
        return msgspec.json.decode((directory / "server.json").read_bytes(), type=Running)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_local(url: str) -> bool:
    """True if a URL names this machine by an address of the loopback interface."""
    return any(host in url for host in ("//127.", "//localhost", "//[::1]"))


def find_endpoint(directory: Path | None = None, url: str = "") -> Endpoint:
    """Return the endpoint of `url` or FAIRLEAD_URL, or of the server that runs on the data directory."""
    directory = directory or data_directory()
    url, token = url.rstrip("/") or os.environ.get(URL, ""), os.environ.get(TOKEN, "")
    authority = os.environ.get(AUTHORITY, "")
    if not url:
        server = running(directory)
        if server is None:
            raise NotFound(f"no server runs on {directory}; start one with `fairlead up`, or set {URL} and {TOKEN}")
        url, authority = server.url, authority or server.authority
        if not token:
            try:
                token = (directory / "token").read_text().strip()
            except OSError as problem:
                raise NotFound(f"{directory / 'token'}: {problem.strerror}; set {TOKEN} to a token of yours") from None
    return Endpoint(url, token, authority, os.environ.get(INSECURE) == "1")
