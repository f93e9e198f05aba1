"""Policies: arithmetic on plain values, separate from the state that the phases apply it to."""
