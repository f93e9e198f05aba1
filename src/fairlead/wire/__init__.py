"""Messages that cross a network, shared by both of their ends."""
