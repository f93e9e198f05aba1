"""Commands and files that pages show are accepted: options exist, and configurations and jobs can be read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from fairlead.cli.main import app
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job
from tests.test_docs import FENCE, ROOT, name_of

PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in ("install", "cluster", "cli", "environment", "python")),
    *sorted((ROOT / "docs" / "from").glob("*.md")),
]
FOLLOWED_BY = {"|", ";", ">", "<", "&&"}


def commands_in(text: str) -> list[list[str]]:
    """Return the words of every command of Fairlead in blocks of text and in tables, up to a pipe or a redirection."""
    lines = [
        line.removeprefix("$ ")
        for block in FENCE.finditer(text)
        if block[1] == "text"
        for line in block[2].splitlines()
    ]
    rows = [line for line in FENCE.sub("", text).splitlines() if line.startswith("|")]
    lines += [code for row in rows for code in re.findall(r"`(fairlead [^`]*)`", row)]
    commands: list[list[str]] = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|<>&")
        lexer.whitespace_split = True
        lexer.commenters = ""
        if not re.match(r"([A-Z_]+=\S+ )*fairlead |printf \S+ \| fairlead ", line):
            continue
        words = list(lexer)
        words = words[words.index("fairlead") + 1 :]
        end = next((at for at, word in enumerate(words) if word in FOLLOWED_BY), len(words))
        commands.append(words[:end])
    return commands


# Words that stand for something else in a table.
STANDING_FOR = {"N": "2", "PERCENT": "50", "…": "", "COMMAND": "ps", "JOB": "1"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_printed_commands_are_accepted(page: Path) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    for words in commands_in(page.read_text(encoding="utf-8")):
        arguments = [STANDING_FOR.get(word, word) for word in words if STANDING_FOR.get(word, word)]
        command, context = group, None
        try:
            while isinstance(command, typer.core.TyperGroup) and arguments and not arguments[0].startswith("-"):
                context = command.make_context("fairlead", [arguments[0]], parent=context)
                _, chosen, _ = command.resolve_command(context, arguments)
                command, arguments = chosen, arguments[1:]  # type: ignore[assignment]
            options = {option for parameter in command.params for option in parameter.opts}
            for word in arguments[: arguments.index("--") if "--" in arguments else None]:
                if word.startswith("-"):
                    assert word in options | {"--help", "--version"}, (words, word)
        except typer.Exit:
            pass


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_shown_can_be_read(page: Path) -> None:
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block[1].split()[:1] == ["yaml"]:
            document = yaml.safe_load(block[2])
            if "partitions" in document:
                parse_config(document)
            else:
                parse_job(document)
