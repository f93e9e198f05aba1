"""Names of result files. Every side that receives one checks it, since the other end may be wrong or hostile."""

from __future__ import annotations

MAX_NAME = 700
"""Bytes of a name, with its folders."""
MAX_PART = 255
"""Bytes of one part of a name, the most of usual file systems."""


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
