"""Packs and seals the calls and results that an executor and its tasks exchange.

A seal is an HMAC-SHA256 over the purpose and the bytes, with the key of the executor. It is checked before anything is
unpickled, because unpickling can run any code. Tasks get the key as a secret of their job.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import pickle
import sys
import zlib
from collections.abc import Callable
from typing import Any

KEY = "FAIRLEAD_CALL_KEY"
"""The variable that holds the key in a task."""
SEAL = 64
"""Characters of a seal."""
PIECE = 100_000
"""Characters of one argument of a command; the system allows 131,071."""
MAX_SENT = 1_500_000
MAX_RETURNED = 8_000_000
STORED = "sha256:"
"""Begins what stands for a larger call or result: the SHA-256 of content on the server."""

# Standard output carries only the result: output of the function goes to standard error. Modules of the working
# directory come last, so that a file there cannot replace a module that is imported before the seal is checked.
RUNNER = """
import sys
sys.path[:] = [path for path in sys.path if path]
import base64, hashlib, hmac, json, os, pickle, traceback, zlib
sys.path.append("")
out = os.dup(1)
os.dup2(2, 1)
most, version, call, seal = int(sys.argv[1]), *sys.argv[2:5]
text = "".join(sys.argv[5:])
key = bytes.fromhex(os.environ.pop("FAIRLEAD_CALL_KEY", ""))
def sealed(*parts):
    return hmac.new(key, b"\\0".join(part.encode() for part in parts), "sha256").hexdigest()
if not key:
    sys.exit("there is no key for this call: its secret has expired or was removed; submit the call again")
if not hmac.compare_digest(seal.encode(), sealed("call", call, text).encode()):
    sys.exit("the call does not carry the seal of the executor that submitted it; it was not read")
def packed(kind, value):
    return zlib.compress(pickle.dumps((kind, value)))
def ask(digest, document=None):
    import ssl, urllib.request
    trust = ssl.create_default_context(cafile=os.environ.get("FAIRLEAD_CA"))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
    url = os.environ["FAIRLEAD_URL"].split(",")[0].rstrip("/") + "/api/v1/contents/" + digest
    asked = urllib.request.Request(url, method="PUT" if document else "GET")
    asked.add_header("Authorization", "Bearer " + os.environ["FAIRLEAD_TOKEN"])
    asked.add_header("Content-Type", "application/json")
    with opener.open(asked, document and json.dumps(document).encode(), 60) as answer:
        return answer.read()
def stored(data):
    digest, at = hashlib.sha256(data).hexdigest(), 0
    document = {"size": len(data)}
    while (at := json.loads(ask(digest, document))["stored"]) < len(data):
        document |= {"offset": at, "data": base64.b64encode(data[at : at + (4 << 20)]).decode()}
    return "sha256:" + digest
try:
    data = base64.b85decode(text) if text[:7] != "sha256:" else ask(text[7:])
    if text[:7] == "sha256:" and hashlib.sha256(data).hexdigest() != text[7:]:
        raise ValueError("the call did not arrive as it was sent; submit it again")
    try:
        function, arguments, named = pickle.loads(zlib.decompress(data))
    except ImportError as lack:
        remedy = "install it there, or name another interpreter with Executor(python=...)"
        raise RuntimeError(f"{sys.executable} has no package {lack.name or lack}: {remedy}") from None
    except Exception as problem:
        if "%d.%d" % sys.version_info[:2] == version:
            raise
        both = f"{sys.executable} is not Python {version}, in which the call was pickled: {problem!r}"
        raise RuntimeError(f"{both}; use the same version, with Executor(python=...)") from None
    result = function(*arguments, **named)
    try:
        import cloudpickle
        data = zlib.compress(cloudpickle.dumps(("result", result)))
    except ImportError:
        data = packed("result", result)
    text = base64.b85encode(data).decode() if len(data) * 5 // 4 <= most else stored(data)
    code = 0
except BaseException as error:
    trace = "".join(traceback.format_exception(error))
    try:
        data = packed("error", (error, trace))
        pickle.loads(zlib.decompress(data))
    except BaseException:
        data = packed("error", (RuntimeError(f"{type(error).__name__}: {error}"), trace))
    sys.stderr.write(trace)
    text = base64.b85encode(data).decode()
    code = 1
task = os.environ["FAIRLEAD_JOB"], os.environ["FAIRLEAD_INDEX"]
data = (sealed("result", call, *task, text) + text + "\\n").encode()
while data:
    data = data[os.write(out, data):]
sys.stdout.flush()
os._exit(code)
"""


class Forged(Exception):
    """Raised if output has no valid seal, so that somebody changed or replaced it. It is not unpickled."""


def call_arguments(key: bytes, call: str, packed: bytes, store: Callable[[bytes], str]) -> list[str]:
    """Return the arguments of `RUNNER` for a pickled call. A large one is stored on the server and named."""
    text = base64.b85encode(packed).decode() if len(packed) * 5 // 4 <= MAX_SENT else STORED + store(packed)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    return [str(MAX_RETURNED), version, call, _sealed(key, "call", call, text), *pieces]


def result_of(key: bytes, call: str, job: str, output: bytes, fetch: Callable[[str], bytes]) -> tuple[str, Any]:
    """Return the output of a call's task as its kind ("result" or "error") and the value.

    `fetch` gets stored content by its SHA-256.
    """
    seal, text = output[:SEAL], output[SEAL:]
    expected = _sealed(key, "result", call, job, "0", text.decode("latin-1"))
    if not hmac.compare_digest(seal, expected.encode()):
        raise Forged(
            f"job {job}: the output of its task does not carry the seal of this call, so it was changed or replaced; "
            "it was not unpickled. Submit the call again, and check which users can write files on the node"
        )
    if text.startswith(STORED.encode()):
        digest = text.decode().removeprefix(STORED)
        data = fetch(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise Forged(f"job {job}: the stored result is not that of this call; it was not unpickled")
    else:
        data = base64.b85decode(text)
    kind, value = pickle.loads(zlib.decompress(data))
    return kind, value


def _sealed(key: bytes, *parts: str) -> str:
    return hmac.new(key, b"\0".join(part.encode() for part in parts), "sha256").hexdigest()
