"""The server: builds it from its parts, and copies its data."""
