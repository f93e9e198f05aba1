"""The agent: our process on a node. It runs what the server sends, under a spawner that outlives it, and reports."""
