"""The error for a request that this server cannot serve now, though nothing is wrong with the request."""

from __future__ import annotations


class Unserved(Exception):
    """Raised if this server cannot serve a request now, though nothing is wrong with the request."""

    def __init__(self, code: str, problem: str, retry_after: int | None = None, leader: str = "") -> None:
        """Describe the problem. `leader` is the address of the server that can serve the request."""
        super().__init__(code, problem)
        self.leader = leader
        self.code = code
        self.problem = problem
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.problem
