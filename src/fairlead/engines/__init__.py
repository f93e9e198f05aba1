"""Engines run tasks: they turn effects into messages to nodes, and messages from nodes into commands."""
