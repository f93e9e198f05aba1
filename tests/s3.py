"""An S3 server for tests, on 127.0.0.1: the one of `moto`, with a bucket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

SECONDS = 60.0


class S3(NamedTuple):
    url: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}

    def names(self) -> list[str]:
        """Return the names of all objects."""
        import obstore
        from obstore.store import S3Store

        options: Any = {"allow_http": True}
        store = S3Store(
            self.bucket,
            endpoint=self.url,
            client_options=options,
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
        )
        return [item["path"] for page in obstore.list(store) for item in page]


@contextmanager
def s3_server(checks_keys: bool = False) -> Iterator[S3]:
    """Start a server. With `checks_keys`, it knows no credentials and has no bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    if checks_keys:
        environment["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
    process = subprocess.Popen(
        [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found = S3(f"http://127.0.0.1:{port}", "bucket")
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                answer = httpx.put(f"{found.url}/{found.bucket}")
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        assert checks_keys or answer.status_code == 200, answer.text
        yield found
    finally:
        process.kill()
        process.wait()
