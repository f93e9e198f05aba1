"""Recognizes the tokens of tasks: each is valid as long as its job is not over, with the rights of the job's user."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.identity.tokens import Token
from fairlead.wire.task_token import TaskToken, unseal
from fairlead.wire.unserved import Unserved

Owner = tuple[str, tuple[str, ...]]
"""A user with its groups."""


class TaskTokens:
    def __init__(self, owner: Callable[[TaskToken], Owner | None], key: bytes) -> None:
        """`owner` returns the owner of the job of a token, or None if the job is over or not known."""
        self._owner = owner
        self._key = key

    def find(self, secret: str) -> Token | None:
        """Return the token of a task whose job is not over. Raise `Unserved` if another server leads the job."""
        token = unseal(self._key, secret)
        owner = None if token is None else self._owner(token)
        if token is None or owner is None:
            return None
        user, groups = owner
        return Token(id=f"job {token.partition}/{token.number}", digest=secret, role="user", user=user, groups=groups)

    def is_known(self, token: Token) -> bool:
        """True while the job of a token that `find` returned is not over."""
        try:
            return self.find(token.digest) is not None
        except Unserved:
            return False
