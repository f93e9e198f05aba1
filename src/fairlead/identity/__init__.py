"""Tokens, sessions, keys of nodes, and secrets. They are stored in small documents that are replaced as a whole."""
