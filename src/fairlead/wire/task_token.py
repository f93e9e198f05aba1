"""The token that the tasks of a job get, so that a job can submit jobs: it is made from a key, and stored nowhere.

It has the partition, the id and the number of its job, and a code that only holders of the key can make.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

KIND = "ft_"


class TaskToken(NamedTuple):
    partition: str
    number: int
    job: str


def seal(key: bytes, token: TaskToken) -> str:
    """Return the token as text. Names have no colon, so it separates them."""
    job = token.job if token.job != str(token.number) else ""
    text = f"{KIND}{token.number}:{token.partition}:{job}:"
    return text + _code(key, text)


def unseal(key: bytes, secret: str) -> TaskToken | None:
    """Return the token of a text; None if it was not made with this key."""
    text, colon, code = secret.rpartition(":")
    if not compare_digest(code.encode(errors="replace"), _code(key, text + colon).encode()):
        return None
    number, partition, job = text.removeprefix(KIND).split(":")
    return TaskToken(partition, int(number), job or number)


def _code(key: bytes, text: str) -> str:
    """Return the code of a token. `person` keeps it apart from other values that are made with the same key."""
    return blake2b(text.encode(errors="replace"), key=key, digest_size=16, person=b"task token").hexdigest()
