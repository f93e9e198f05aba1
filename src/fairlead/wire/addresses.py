"""Server addresses: their parts, and which of them need TLS."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def parse_url(url: str) -> tuple[bool, str, int, str]:
    """Return whether a URL is encrypted, its host, port and path. Raise `ValueError` if the URL is not valid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not the address of a server; write http://HOST:PORT or https://HOST:PORT")
    return parts.scheme == "https", parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path


def is_loopback(host: str) -> bool:
    """True if the host name means this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_exposed(url: str) -> bool:
    """True if requests to the URL can be read on the network: plain HTTP to another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def servers(text: str) -> list[str]:
    """Return the URLs of a list such as `https://one:7070,https://two:7070`: servers of one cluster."""
    return [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
