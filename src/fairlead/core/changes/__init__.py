"""All changes of a partition's state, each with its undo. One file per noun.

All changes and their undo records can be imported from here. A change is journaled as an array of its tag and its
fields. So a new field must come last and have a default; any other alteration needs a new format version of the
journal.
"""

# ruff: noqa: F403
from __future__ import annotations

from typing import Any

from fairlead.core.changes.chains import *
from fairlead.core.changes.change import *
from fairlead.core.changes.change import DEFINED as DEFINED
from fairlead.core.changes.change import Change as Change
from fairlead.core.changes.change import Line as Line
from fairlead.core.changes.change import Names as Names
from fairlead.core.changes.config import *
from fairlead.core.changes.ends import *
from fairlead.core.changes.eras import *
from fairlead.core.changes.gangs import *
from fairlead.core.changes.holds import *
from fairlead.core.changes.jobs import *
from fairlead.core.changes.nodes import *
from fairlead.core.changes.notes import *
from fairlead.core.changes.pools import *
from fairlead.core.changes.singles import *
from fairlead.core.changes.stages import *
from fairlead.core.changes.tasks import *

ALL_CHANGES: tuple[type[Change[Any]], ...] = tuple(DEFINED)
"""The changes that Fairlead itself makes."""
