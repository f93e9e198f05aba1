"""CSV files with a header: rows as dicts by column name, with their line numbers."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from fairlead.core.errors import Refused

Lines = Iterable[tuple[int, str]]


class Table:
    """A CSV table. The header is read at once, the rows during iteration."""

    def __init__(self, lines: Lines) -> None:
        rows = _rows(lines)
        _, header = next(rows, (1, []))
        self.columns = [name.strip() for name in header]
        self._rows = rows

    def need(self, *columns: str) -> None:
        missing = [name for name in columns if name not in self.columns]
        if missing:
            raise Refused("columns", f"{', '.join(missing)} missing; the header has {', '.join(self.columns)}")

    def allow(self, columns: Collection[str]) -> None:
        """Refuse unknown columns, which would silently have no effect."""
        unknown = [name for name in self.columns if name not in columns]
        if unknown:
            raise Refused("columns", f"{', '.join(unknown)} not known; known are {', '.join(columns)}")

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows. A missing value is empty. A row with too many values also has the key `""`."""
        for at, row in self._rows:
            if row:
                values = chain((value.strip() for value in row), [""] * (len(self.columns) - len(row)))
                named = dict(zip(self.columns, values, strict=False))
                if len(row) > len(self.columns):
                    named[""] = row[len(self.columns)]
                yield at, named


def _rows(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    # A quoted value may span several lines, so the CSV reader counts the lines.
    reader = csv.reader(text for _, text in lines)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            raise Refused(f"line {reader.line_num}", f"not CSV: {problem}; correct the line") from None
        yield reader.line_num, row
