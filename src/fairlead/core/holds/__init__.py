"""Holds: nodes kept free for starving asks; promises: nodes on which capacity is coming for an ask."""
