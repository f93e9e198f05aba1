"""The agent: our process on a node. It runs the server's tasks under spawners that outlive it, and reports on them."""
