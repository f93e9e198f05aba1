"""Read models: immutable pictures of the state, for people and programs that ask."""
