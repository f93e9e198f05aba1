"""Serves the files of the web page, which the build of the package makes from the folder `web`.

They are the same for all callers and need no token: its data come from the API. All files are
in memory, also compressed. Names below `assets` contain a digest of the content, so browsers may cache them forever.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from fairlead.http.responses import Receive, Scope, Send, send_body

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types svelte-trusted-html"
)
"""Content security policy: scripts and styles only from these files, requests only to this server, no framing."""
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"accept-encoding"),
]


def _notice(head: str, *lines: str) -> bytes:
    """Return a page that is shown while there is no web page."""
    body = "\n".join(f"<p>{line}</p>" for line in (*lines, WITHOUT))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{head}
<title>Fairlead</title></head>
<body><h1>Fairlead</h1>
{body}</body></html>
""".encode()


WITHOUT = "The command line works without it: <code>fairlead --help</code>."
NOT_BUILT = _notice(
    "",
    "The server works. Its web page is not built, because this is a clone of the sources.",
    "Run <code>make page</code> in the clone, then load this page again. An installed wheel of Fairlead has the page "
    "already.",
)
BEING_BUILT = _notice(
    '<meta http-equiv="refresh" content="1">',
    "The server works. Its web page is being built and appears here in a few seconds.",
)
BUILD_FAILED = _notice(
    "",
    "The server works. The build of its web page failed; <code>src/fairlead/page.log</code> in the clone says why.",
    "Run <code>make page</code> in the clone to build it again, then load this page again.",
)


class File(NamedTuple):
    """A file as it is sent."""

    media_type: str
    plain: bytes
    packed: bytes
    tag: bytes
    lasting: bool
    """True if the name changes with the content, so that browsers may cache it forever."""


class Page:
    """The files as an ASGI application."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder if folder is not None else files("fairlead") / "page"
        self._files: dict[str, File] = {}
        self._built = 0
        """The modification time of `index.html` when the files were read."""

    def has(self, path: str) -> bool:
        return path == "/" or path in self._found()

    def _found(self) -> dict[str, File]:
        """Return the files by path. Read them first if there were none before."""
        if not self._files and (self._folder / "index.html").is_file():
            self._built = self._time()
            found = dict(_below(self._folder, "/"))
            found["/"] = found.pop("/index.html")
            self._files = found
        return self._files

    def _time(self) -> int:
        """Return the modification time of `index.html`; 0 if there is none, or if it is not in a folder."""
        try:
            return Path(str(self._folder), "index.html").stat().st_mtime_ns
        except OSError:
            return 0

    def _notice(self) -> bytes:
        """Return the page to show while there is no web page. A build in progress holds a lock on its log."""
        try:
            with Path(f"{self._folder}.log").open() as log:
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return BEING_BUILT
        except OSError:
            return NOT_BUILT
        return BUILD_FAILED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET or HEAD request for a file of the page."""
        if scope["path"] == "/" and self._files and self._time() not in (0, self._built):
            self._files = {}  # it was built again
        file = self._found().get(scope["path"])
        if file is None:
            notice = self._notice()
            file = File(TYPES["html"], notice, notice, b"", False)
        sent = dict(scope["headers"])
        caching = b"public, max-age=31536000, immutable" if file.lasting else b"no-cache"
        headers = [*HEADERS, (b"cache-control", caching)]
        if file.tag:
            headers.append((b"etag", file.tag))
        status, body = 200, file.plain
        if file.tag and sent.get(b"if-none-match") == file.tag:
            status, body = 304, b""
        else:
            headers.append((b"content-type", file.media_type.encode()))
            if file.packed is not file.plain and b"gzip" in sent.get(b"accept-encoding", b""):
                body = file.packed
                headers.append((b"content-encoding", b"gzip"))
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send_body(send, b"" if scope["method"] == "HEAD" else body)


def _below(folder: Traversable, path: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _below(entry, f"{path}{entry.name}/")
            continue
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            plain = entry.read_bytes()
            tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'.encode()
            file = File(kind, plain, gzip.compress(plain, 9, mtime=0), tag, path.startswith("/assets/"))
            found.append((f"{path}{entry.name}", file))
    return found
