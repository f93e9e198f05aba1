"""The HTTP API: one port for people, programs and agents.

`server.py` listens, `middleware.py` limits requests and finds the caller, `application.py` connects the routes in
`routes/`, one file a noun.
"""
