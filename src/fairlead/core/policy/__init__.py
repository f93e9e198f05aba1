"""Policies: functions that calculate with plain values and do not know the state. Phases apply their results to it."""
