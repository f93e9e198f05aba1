"""The agent: Fairlead's process on a node. It runs tasks under spawners that outlive it, and reports on them."""
