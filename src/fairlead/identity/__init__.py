"""Identities: tokens, sessions, keys of nodes, and secrets, in small documents that are replaced as a whole."""
