"""The core, pure and deterministic: takes commands and the time, and returns changes, answers and effects.

Read `cycle` first: it lists the phases in order. `state` holds the state, `changes` defines the only ways to alter the
state, and `plan` applies changes.
"""
