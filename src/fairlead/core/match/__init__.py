"""Match: gives nodes to waiting asks, in turns. `match` is the phase; the other files are its parts."""
