"""Arithmetic on plain values: what the phases decide with, apart from the state they apply it to."""
