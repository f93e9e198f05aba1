"""Options that many commands share, and the client of the server they call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fairlead.cli import completion

if TYPE_CHECKING:
    from fairlead.client import Client

LogLevel = Literal["debug", "info", "warning", "error"]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        envvar="FAIRLEAD_LOG_LEVEL",
        help="Write only log lines of this level and above. At debug, the server also logs why tasks wait.",
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        "--partition",
        "-p",
        help="Partition. By default the only one, or `default`.",
        autocompletion=completion.partitions,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
JobName = Annotated[str, typer.Argument(help="Id of a job.", metavar="JOB", autocompletion=completion.jobs)]
LiveJobName = Annotated[str, typer.Argument(help="Id of a job.", metavar="JOB", autocompletion=completion.live_jobs)]
QueueFilter = Annotated[
    str,
    typer.Option(
        "--queue", "-q", help="Only jobs in this queue and the queues below it.", autocompletion=completion.queues
    ),
]


UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "m": 60, "s": 1}
DURATION = re.compile(r"(?:[0-9]{1,6}(?:w|d|h|min|m|s))+")


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration such as 1h30m; None if the text is not a duration."""
    if not DURATION.fullmatch(text):
        return None
    return float(sum(int(number) * UNITS[unit] for number, unit in re.findall(r"([0-9]+)([a-z]+)", text)))


MIB = 2**20
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


def check_memory(text: str, option: str) -> None:
    """Refuse memory without a unit that is too little to be meant."""
    if NUMBER.fullmatch(text) and 0 < float(text) < MIB:
        raise typer.BadParameter(
            f"memory {text} is {text} bytes; write {text}Gi for gibibytes, or {text}Mi for mebibytes", param_hint=option
        )


def check_duration(text: str | None, option: str) -> None:
    """Refuse a duration without a unit: seconds, minutes and hours are all usual."""
    if text is not None and NUMBER.fullmatch(text):
        raise typer.BadParameter(
            f"{text} has no unit; write {text}h for hours, {text}min for minutes, or {text}s for seconds",
            param_hint=option,
        )


def open_client(partition: str = "") -> Client:
    """Return a client of the server named by the environment or by the data directory of this user."""
    from fairlead.client import Client, find_endpoint

    place = find_endpoint()
    return Client(place.url, place.token, place.authority, partition, place.insecure)


def pairs(values: list[str] | None, option: str, form: str = "key=value", separator: str = "=") -> dict[str, str]:
    """Return the texts of a repeated option, by default `key=value`, as a dict."""
    result: dict[str, str] = {}
    for text in values or ():
        key, found, value = text.partition(separator)
        if not found or not key:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        if key in result:
            raise typer.BadParameter(f"{key} is given twice; drop one of them", param_hint=option)
        result[key] = value
    return result
