"""The simulator's parts: a virtual fleet for the real writer."""
