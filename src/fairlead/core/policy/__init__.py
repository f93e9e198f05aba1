"""Policies: functions of plain values, which phases call and whose results they apply to the state."""
