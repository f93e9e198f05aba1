"""Malformed addresses of a database: messages name no part that may be of a password."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg")

from fairlead.journal.journal import JournalError
from fairlead.journal.pgconnection import connect, shown_url

MALFORMED = [
    "postgresql://ann:hunter2@:x@host/db",
    "postgresql://ann:hun%ter2@host/db",
    "postgresql://ann:hun/ter2@host/db",
    "postgresql://ann:hunter2@h@host/db",
    "postgresql://ann:hun ter2@[host/db",
    "postgresql://ann:hun#ter2@host:hunter2/db",
    "postgresql://ann:hunter2@host/db?sslmode",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_no_part_of_a_password_is_shown(url: str) -> None:
    with pytest.raises(JournalError) as refused:
        connect(url, "test")
    for text in (str(refused.value), shown_url(url)):
        assert "ter2" not in text and "hun" not in text
    assert "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE" in str(refused.value)


def test_an_address_is_shown_without_its_password() -> None:
    assert shown_url("postgresql://ann:hunter2@host:5432/db") == "postgresql://host:5432/db"
