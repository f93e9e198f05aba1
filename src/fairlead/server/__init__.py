"""The running server: builds it from its concrete classes, and copies its data."""
