"""The core: pure and deterministic. Commands go in; changes, answers and effects come out; time is an argument.

Read `cycle` first: it names the phases in their order. `state` is what is altered, `changes` the only ways to
alter it, `plan` the only handle that may.
"""
