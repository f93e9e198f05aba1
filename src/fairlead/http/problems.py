"""Errors as RFC 9457 problem documents: each says what is wrong, where, and what to do."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from fairlead.core.commands import Rejected
from fairlead.core.errors import Refused
from fairlead.wire.api import Problem
from fairlead.wire.unserved import Unserved

MEDIA_TYPE = "application/problem+json"

STATUS = {
    "invalid": 422,
    "unknown": 422,
    "missing": 404,
    "conflict": 409,
    "alarm": 409,
    "forbidden": 403,
    "unauthenticated": 401,
    "gone": 404,
    "malformed": 400,
    "method": 405,
    "too large": 413,
    "too slow": 408,
    "too many": 429,
    "unavailable": 503,
    "standby": 503,
    "behind": 503,
    "not ready": 503,
    "timeout": 504,
    "unwritten": 507,
}
"""Code of a refusal → HTTP status."""


def problem_of(error: Refused | Rejected | Unserved) -> Problem:
    """Return the problem document of an error."""
    status = STATUS.get(error.code, 422)
    return Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=error.problem,
        code=error.code,
        field="" if isinstance(error, Unserved) else error.field,
        leader=error.leader if isinstance(error, Unserved) else "",
    )


def plain(status: int, detail: str, code: str) -> Problem:
    return Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code)


def encoded(problem: Problem) -> bytes:
    return msgspec.json.encode(problem)
