"""Why an ask waits, and what would start it: reasons while deciding, explanations and remedies on demand.

`reasons.py` has the typed reasons, `obstacles.py` counts what nodes lack, `never.py` finds what can never run,
`explain.py` chooses the reason to show. `remedies.py` searches the smallest set of `remedy_steps.py` that is enough,
and `remedy_trial.py` tries it in the core on a copy of the state.
"""
