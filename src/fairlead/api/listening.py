"""The socket that is listened on: made before anything that takes long, so that callers may already queue up; TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from fairlead.api.smallfile import FileProblem

BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches off Nagle's algorithm only where the protocol is named; with it answers would take 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


def check_tls(certificate: Path, key: Path) -> None:
    """Raise `FileProblem` if the files of TLS cannot be read, or do not belong together."""
    for option, path, mark, wanted in (
        ("--certificate", certificate, b"CERTIFICATE-----", "certificate"),
        ("--key", key, b"PRIVATE KEY-----", "private key"),
    ):
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise FileProblem(f"{option} {path}: {problem.strerror}; name a file that the server can read") from None
        if mark not in content:
            raise FileProblem(f"{option} {path}: there is no {wanted} in it; name a PEM file that has one")
    try:
        # With a password that is none, nobody is asked for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (ssl.SSLError, OSError) as problem:
        raise FileProblem(
            f"--certificate {certificate} and --key {key}: {problem}; name a certificate and its own key, which has no "
            "password"
        ) from None
