"""Packs and seals the calls and results that an executor and its tasks exchange.

A seal is an HMAC-SHA256 over the purpose and the bytes, with the key of the executor. It is checked before anything is
unpickled, because unpickling can run any code. Tasks get the key as a secret of their job.
"""

from __future__ import annotations

import base64
import hmac
import pickle
import zlib
from typing import Any

KEY = "FAIRLEAD_CALL_KEY"
"""The variable that holds the key in a task."""
SEAL = 64
"""Characters of a seal."""
PIECE = 100_000
"""Characters of one argument of a command; the system allows 131,071."""
MAX_SENT = 1_500_000
MAX_RETURNED = 8_000_000

# Standard output carries only the result: output of the function goes to standard error. Modules of the working
# directory come last, so that a file there cannot replace a module that is imported before the seal is checked.
RUNNER = """
import sys
sys.path[:] = [path for path in sys.path if path]
import base64, hmac, os, pickle, traceback, zlib
sys.path.append("")
out = os.dup(1)
os.dup2(2, 1)
most, call, seal = int(sys.argv[1]), sys.argv[2], sys.argv[3]
text = "".join(sys.argv[4:])
key = bytes.fromhex(os.environ.pop("FAIRLEAD_CALL_KEY", ""))
def sealed(*parts):
    return hmac.new(key, b"\\0".join(part.encode() for part in parts), "sha256").hexdigest()
if not key:
    sys.exit("there is no key for this call: its secret has expired or was removed; submit the call again")
if not hmac.compare_digest(seal.encode(), sealed("call", call, text).encode()):
    sys.exit("the call does not carry the seal of the executor that submitted it; it was not read")
def packed(kind, value):
    return zlib.compress(pickle.dumps((kind, value)))
try:
    function, arguments, named = pickle.loads(zlib.decompress(base64.b85decode(text)))
    result = function(*arguments, **named)
    try:
        import cloudpickle
        data = zlib.compress(cloudpickle.dumps(("result", result)))
    except ImportError:
        data = packed("result", result)
    if len(data) * 5 // 4 > most:
        raise ValueError(f"the result has {len(data)} bytes when packed; write it to a file and return its name")
    code = 0
except BaseException as error:
    trace = "".join(traceback.format_exception(error))
    try:
        data = packed("error", (error, trace))
        pickle.loads(zlib.decompress(data))
    except BaseException:
        data = packed("error", (RuntimeError(f"{type(error).__name__}: {error}"), trace))
    sys.stderr.write(trace)
    code = 1
text = base64.b85encode(data).decode()
task = os.environ["FAIRLEAD_JOB"], os.environ["FAIRLEAD_INDEX"]
data = (sealed("result", call, *task, text) + text + "\\n").encode()
while data:
    data = data[os.write(out, data):]
sys.stdout.flush()
os._exit(code)
"""


class Forged(Exception):
    """Raised if output has no valid seal, so that somebody changed or replaced it. It is not unpickled."""


def call_arguments(key: bytes, call: str, packed: bytes) -> list[str]:
    """Return the arguments of `RUNNER` for a pickled call."""
    text = base64.b85encode(packed).decode()
    if len(text) > MAX_SENT:
        raise ValueError(
            f"function and arguments have {len(text)} bytes when packed, more than {MAX_SENT}; pass file names"
        )
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    return [str(MAX_RETURNED), call, _sealed(key, "call", call, text), *pieces]


def result_of(key: bytes, call: str, job: str, output: bytes) -> tuple[str, Any]:
    """Return the output of a call's task as its kind ("result" or "error") and the value."""
    seal, text = output[:SEAL], output[SEAL:]
    expected = _sealed(key, "result", call, job, "0", text.decode("latin-1"))
    if not hmac.compare_digest(seal, expected.encode()):
        raise Forged(
            f"job {job}: the output of its task does not carry the seal of this call, so it was changed or replaced; "
            "it was not unpickled. Submit the call again, and check which users can write files on the node"
        )
    kind, value = pickle.loads(zlib.decompress(base64.b85decode(text)))
    return kind, value


def _sealed(key: bytes, *parts: str) -> str:
    return hmac.new(key, b"\0".join(part.encode() for part in parts), "sha256").hexdigest()
