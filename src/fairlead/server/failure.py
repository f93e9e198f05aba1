"""The error that functions of the server package raise, and checks of input that raise it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairlead import policies
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.core.resources import SECOND, parse_duration
from fairlead.core.settings import PartitionConfig
from fairlead.identity.smallfile import FileProblem
from fairlead.journal.journal import JournalError
from fairlead.pools.provider import check_providers
from fairlead.views.config_document import config_view


class Failed(Exception):
    """Raised if an operation failed. `field` is the field of a document, if the problem is in one."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem, field)
        self.problem = problem
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


@contextmanager
def refusals_as_failed() -> Iterator[None]:
    """Convert refusals of the core to `Failed`, which the command line prints."""
    try:
        yield
    except Refused as refusal:
        raise Failed(refusal.problem, refusal.field) from refusal


@contextmanager
def storage_problems_as_failed() -> Iterator[None]:
    """Convert problems of journals and files to `Failed`."""
    try:
        yield
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem


def load_policies() -> None:
    """Load the policies of installed packages, so that configurations may name them."""
    try:
        policies.load()
    except policies.PolicyError as problem:
        raise Failed(str(problem)) from problem


def checked_config(document: object, defaults: bool) -> dict[str, Any]:
    """Parse and check a configuration. Return it in the form of a file, with or without defaults."""
    load_policies()
    with refusals_as_failed():
        return config_view(parsed_config(document), defaults)


def parsed_config(document: object) -> dict[str, PartitionConfig]:
    """Parse and check a configuration. Raise `Refused` if it is wrong."""
    configs = parse_config(document)
    check_providers(configs)
    return configs


def check_node(name: str, resources: dict[str, str]) -> None:
    """Raise `Failed` if no node can have this name or these resources."""
    with refusals_as_failed():
        parse_node({"name": name, "resources": {"cpu": 1, **resources}})


def whole_seconds(text: str, field: str) -> int:
    """Return the seconds of a duration, at least 1."""
    with refusals_as_failed():
        return max(1, parse_duration(text, field) // SECOND)
