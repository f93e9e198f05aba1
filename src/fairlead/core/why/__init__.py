"""Why an ask waits, and what would start it: reasons from match, explanations and remedies when a user asks.

`reasons.py` has the typed reasons, `obstacles.py` counts what nodes lack, `never.py` finds what can never run,
`explain.py` chooses the reason to show. `remedies.py` searches the fewest `remedy_steps.py` that are enough, and
`remedy_trial.py` tries them in the core on a copy of the state.
"""
