"""The token that the tasks of a job get, so that a job can submit jobs: it is made from a key, and stored nowhere.

It has the partition, the id and the number of its job, and a code that only holders of the key can make.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

KIND = "ft_"
CODE = 22
"""Length of the code in characters, for 128 bits."""


class TaskToken(NamedTuple):
    partition: str
    number: int
    job: str


def seal(key: bytes, token: TaskToken) -> str:
    """Return the token as text."""
    text = f"{token.number}\0{token.partition}\0{token.job if token.job != str(token.number) else ''}"
    return f"{KIND}{urlsafe_b64encode(text.encode()).decode().rstrip('=')}.{_code(key, token)}"


def unseal(key: bytes, secret: str) -> TaskToken | None:
    """Return the token of a text; None if it was not made with this key."""
    text, _, code = secret.removeprefix(KIND).partition(".")
    try:
        number, partition, job = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().split("\0", 2)
        token = TaskToken(partition, int(number), job or number)
    except ValueError:
        return None
    return token if hmac.compare_digest(code.encode(errors="replace"), _code(key, token).encode()) else None


def _code(key: bytes, token: TaskToken) -> str:
    """Return the code of a token. The first part keeps it apart from other values that are made with the same key."""
    message = f"task token\0{token.partition}\0{token.number}\0{token.job}"
    return urlsafe_b64encode(hmac.digest(key, message.encode(), "sha256")).decode()[:CODE]
