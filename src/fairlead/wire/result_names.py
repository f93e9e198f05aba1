"""Checks names of result files. Every receiver checks them, because the sender may be wrong or hostile."""

from __future__ import annotations

MAX_NAME = 700
"""Largest number of bytes of a name with its folders."""
MAX_PART = 255
"""Largest number of bytes of one part of a name, as in common file systems."""


def is_safe_name(name: str) -> bool:
    """True if a name is a relative path that stays below its folder, and that can be stored and printed."""
    try:
        sizes = [len(part.encode()) for part in name.split("/")]
    except UnicodeEncodeError:
        return False
    return (
        name.isprintable()
        and sum(sizes) + len(sizes) <= MAX_NAME + 1
        and all(0 < size <= MAX_PART for size in sizes)
        and not {".", ".."} & set(name.split("/"))
    )
