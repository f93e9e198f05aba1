"""Lists of nodes in Slurm's notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.hostlist import expand_hosts, fold_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("box", ["box"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3,5]", ["n1", "n2", "n3", "n5"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("gpu[1-2]-ib,login", ["gpu1-ib", "gpu2-ib", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_a_list_is_expanded(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n]", "n[a-b]", "n[1-999999999]"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a list|stands for more"):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n3", "n1", "n2", "n5"], "n[1-3,5]"),
        (["box"], "box"),
        (["n7"], "n7"),
        (["n08", "n09", "n10", "n7"], "n[08-10],n7"),
    ],
)
def test_names_are_folded(names: list[str], text: str) -> None:
    assert fold_hosts(names) == text


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,3}", fullmatch=True), max_size=30))
def test_folded_names_expand_to_the_same_names(names: list[str]) -> None:
    assert sorted(expand_hosts(fold_hosts(names))) == sorted(set(names))
