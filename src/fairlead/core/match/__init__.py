"""Match: waiting asks get nodes, in turns. `match` is the phase; the other files are its parts."""
