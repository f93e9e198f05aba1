"""Messages that cross a network, shared by sender and receiver."""
