"""Reads command lines and #SBATCH lines by the tables of options, as getopt_long does in Slurm's commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple, NoReturn

Support = Literal["supported", "accepted", "refused"]
MARKS: dict[str, Support] = {"~": "accepted", "!": "refused"}
VERSION = "22.05.8"
"""The version of Slurm whose commands these resemble. Programs that ask for `--version` compare it."""


class Option(NamedTuple):
    """An option of a command. `accepted` options have no effect; `text` then says why."""

    short: str
    longs: tuple[str, ...]
    value: str
    """How help shows the value; empty for a flag."""
    optional: bool
    support: Support
    text: str

    @property
    def key(self) -> str:
        """The name under which a parsed command line has its value."""
        return self.longs[0] if self.longs else self.short

    @property
    def names(self) -> str:
        names = [f"-{self.short}"] if self.short else []
        names += [f"--{name}" for name in self.longs]
        value = f"[={self.value}]" if self.optional else f"={self.value}" if self.value else ""
        return ", ".join(names) + value


class Table(NamedTuple):
    """A command: its words after the name, what it does, and its options."""

    name: str
    usage: str
    text: str
    options: tuple[Option, ...]
    permuted: bool = True
    """True if options may follow other words. Else the first other word begins the command that is run."""
    code: int = 1
    """The exit status after an unknown option."""


LINE = re.compile(r"([~!]?) *(?:-(\w)(?:, )?)?((?:--[\w-]+(?:, )?)*)(\[?)=?([^\s|]*?)\]? +\| (.+)")


def table(name: str, usage: str, text: str, options: str, permuted: bool = True, code: int = 1) -> Table:
    """Return a table from text with a line for each option. A mark before an option says that it is accepted without
    effect (~) or refused (!)."""
    rows = []
    for line in filter(str.strip, options.splitlines()):
        match = LINE.fullmatch(line.strip())
        assert match is not None, line
        mark, short, longs, optional, value, about = match.groups()
        names = tuple(long.removeprefix("--") for long in longs.split(", ") if long)
        support: Support = MARKS.get(mark, "supported")
        rows.append(Option(short or "", names, value, bool(optional), support, about))
    return Table(name, usage, text, tuple(rows), permuted, code)


def error(command: str, text: str) -> None:
    print(f"{command}: error: {text}", file=sys.stderr)


def fail(command: str, text: str, code: int = 1) -> NoReturn:
    """Print an error as Slurm's commands do, and exit."""
    error(command, text)
    raise SystemExit(code)


class Given(dict[str, str]):
    """The options that were given: name → value, an empty text for a flag."""

    def flag(self, name: str) -> bool:
        return name in self


@cache
def _by_name(table: Table) -> tuple[Mapping[str, Option], Mapping[str, Option]]:
    longs = {name: option for option in table.options for name in option.longs}
    return {option.short: option for option in table.options if option.short}, longs


def parse(table: Table, words: Sequence[str]) -> tuple[Given, list[str]]:
    """Return the options of a command line, and its other words. Exit with Slurm's message if an option is wrong."""
    given, rest = Given(), []
    shorts, longs = _by_name(table)
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--":
            rest += queue
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = _long(table, longs, name)
            if option.value and not option.optional and not equals:
                if not queue:
                    _usage(table, f"option '--{name}' requires an argument")
                value = queue.pop(0)
            elif equals and not option.value:
                _usage(table, f"option '--{name}' doesn't allow an argument")
            _take(table, given, option, value)
        elif word.startswith("-") and len(word) > 1:
            _take_short(table, shorts, given, word, queue)
        elif table.permuted:
            rest.append(word)
        else:
            rest += [word, *queue]
            break
    return given, rest


def _take_short(table: Table, shorts: Mapping[str, Option], given: Given, word: str, queue: list[str]) -> None:
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = shorts.get(letter)
        if option is None:
            _usage(table, f"invalid option -- '{letter}'")
        value = ""
        if option.value:
            value, letters = letters, ""
            if not value and not option.optional:
                if not queue:
                    _usage(table, f"option requires an argument -- '{letter}'")
                value = queue.pop(0)
        _take(table, given, option, value)


def _long(table: Table, longs: Mapping[str, Option], name: str) -> Option:
    if name in longs:
        return longs[name]
    found = {longs[long].key: longs[long] for long in longs if long.startswith(name)}
    if not found:
        _usage(table, f"unrecognized option '--{name}'")
    if len(found) > 1:
        possible = " ".join(f"'--{long}'" for long in sorted(found))
        _usage(table, f"option '--{name}' is ambiguous; possibilities: {possible}")
    return next(iter(found.values()))


def _take(table: Table, given: Given, option: Option, value: str) -> None:
    if option.support == "refused":
        fail(table.name, f"{option.names.partition('=')[0].partition('[')[0]} is not supported: {option.text}")
    if option.key in ("help", "usage"):
        print(help_text(table), end="")
        raise SystemExit(0)
    if option.key == "version":
        print(f"slurm {VERSION}")
        raise SystemExit(0)
    given[option.key] = value


def _usage(table: Table, problem: str) -> NoReturn:
    print(f'{table.name}: {problem}\nTry "{table.name} --help" for more information', file=sys.stderr)
    raise SystemExit(table.code)


def help_text(table: Table) -> str:
    lines = [f"Usage: {table.name} {table.usage}".rstrip(), "", table.text, ""]
    for heading, support in (
        ("Options:", "supported"),
        ("Accepted without effect:", "accepted"),
        ("Refused:", "refused"),
    ):
        options = [option for option in table.options if option.support == support]
        lines += [heading, *_columns(options), ""] if options else []
    return "\n".join(lines)


def _columns(options: Iterable[Option]) -> list[str]:
    return [f"  {option.names:<30} {option.text}" for option in options]


def from_environment(table: Table, environment: Mapping[str, str], prefix: str, renamed: Mapping[str, str]) -> Given:
    """Return the options that variables such as SBATCH_PARTITION give. `renamed` has those with other names."""
    given = Given()
    for option in table.options:
        variable = renamed.get(option.key, f"{prefix}_{option.key.upper().replace('-', '_')}")
        if variable in environment and option.support == "supported":
            given[option.key] = environment[variable]
    return given
