"""The error of a request that cannot be served here and now, for a reason other than its content."""

from __future__ import annotations


class Unserved(Exception):
    """A request that cannot be served, for a reason other than its content."""

    def __init__(self, code: str, problem: str, retry_after: int | None = None, leader: str = "") -> None:
        """Describe the problem. `leader` is the address of the server that can serve the request."""
        super().__init__(code, problem)
        self.leader = leader
        self.code = code
        self.problem = problem
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.problem
