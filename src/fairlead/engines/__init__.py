"""Where tasks run: engines turn effects into messages to machines, and what machines say into commands."""
