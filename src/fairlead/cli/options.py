"""Options that many commands share, and the client of the server they call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from fairlead.client import Client

LogLevel = Literal["debug", "info", "warning", "error"]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        envvar="FAIRLEAD_LOG_LEVEL",
        help="Least level of the lines in the log. At debug, the server says why asks wait.",
    ),
]
Partition = Annotated[str, typer.Option("--partition", "-p", help="Partition. By default the only one, or `default`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobName = Annotated[str, typer.Argument(help="The id of a job.", metavar="JOB")]


UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "m": 60, "s": 1}
DURATION = re.compile(r"(?:[0-9]{1,6}(?:w|d|h|min|m|s))+")


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration such as 1h30m; None if the text is none."""
    if not DURATION.fullmatch(text):
        return None
    return float(sum(int(number) * UNITS[unit] for number, unit in re.findall(r"([0-9]+)([a-z]+)", text)))


def open_client(partition: str = "") -> Client:
    """Return a client of the server named by the environment or by the data directory of this user."""
    from fairlead.client import Client, find_endpoint

    place = find_endpoint()
    return Client(place.url, place.token, place.authority, partition, place.insecure)


def pairs(values: list[str] | None, option: str, form: str = "key=value", separator: str = "=") -> dict[str, str]:
    """Return the key=value texts of a repeated option, or texts of another form, as a dict."""
    result: dict[str, str] = {}
    for text in values or ():
        key, found, value = text.partition(separator)
        if not found or not key:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        if key in result:
            raise typer.BadParameter(f"{key} is given twice; drop one of them", param_hint=option)
        result[key] = value
    return result
