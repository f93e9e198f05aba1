"""Writes docs/slurm-options.md from the tables of options."""

from __future__ import annotations

from fairlead.slurm.tables import TABLES

HEAD = """# Options of Slurm's commands

`make generate` writes this page from the tables that also parse the options (`slurm/tables.py`). *Accepted* options
have no effect, and the page says why. *Refused* ones end the command with an error that names them. How the commands
work is in [Slurm's commands](slurm.md).
"""
WORDS = {"supported": "", "accepted": "accepted: ", "refused": "**refused**: "}


def options_page() -> str:
    parts = [HEAD]
    for table in TABLES:
        rows = [
            f"| `{_cell(option.names)}` | {WORDS[option.support]}{_cell(option.text)} |" for option in table.options
        ]
        parts.append("\n".join([f"\n## {table.name}\n", table.text + "\n", "| option | |", "|---|---|", *rows]) + "\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
