"""The HTTP API: one port for people, programs and agents.

`server.py` listens, `middleware.py` limits requests and finds the caller, and `dispatch.py` calls the handlers in
`routes/`, which has a file for each noun.
"""
