"""All changes of a partition's state, each with its undo. One file per noun.

A module's `__all__` lists its changes and their undo records; all of them can be imported from here. A change is
journaled as an array of its tag and its fields. So a new field must come last and have a default; any other alteration
needs a new format version of the journal.
"""

# ruff: noqa: F403
from __future__ import annotations

from typing import Any

from fairlead.core.changes import (
    chains,
    config,
    ends,
    gangs,
    holds,
    jobs,
    keys,
    nodes,
    pools,
    runs,
    shares,
    singles,
    stages,
    strange,
    tasks,
)
from fairlead.core.changes.chains import *
from fairlead.core.changes.change import DEFINED, Change
from fairlead.core.changes.config import *
from fairlead.core.changes.ends import *
from fairlead.core.changes.gangs import *
from fairlead.core.changes.holds import *
from fairlead.core.changes.jobs import *
from fairlead.core.changes.keys import *
from fairlead.core.changes.lines import Line, Names
from fairlead.core.changes.news import JobNews, News, NodeNews, TaskNews
from fairlead.core.changes.nodes import *
from fairlead.core.changes.pools import *
from fairlead.core.changes.runs import *
from fairlead.core.changes.shares import *
from fairlead.core.changes.singles import *
from fairlead.core.changes.stages import *
from fairlead.core.changes.strange import *
from fairlead.core.changes.tasks import *

__all__ = ["ALL_CHANGES", "DEFINED", "Change", "JobNews", "Line", "Names", "News", "NodeNews", "TaskNews"]
__all__ += chains.__all__
__all__ += config.__all__
__all__ += ends.__all__
__all__ += gangs.__all__
__all__ += holds.__all__
__all__ += jobs.__all__
__all__ += keys.__all__
__all__ += nodes.__all__
__all__ += pools.__all__
__all__ += runs.__all__
__all__ += shares.__all__
__all__ += singles.__all__
__all__ += stages.__all__
__all__ += strange.__all__
__all__ += tasks.__all__

ALL_CHANGES: tuple[type[Change[Any]], ...] = tuple(DEFINED)
"""The changes that Fairlead itself makes."""
