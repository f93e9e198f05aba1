"""Fairlead for assistants: operations of the API as tools of the Model Context Protocol (docs/assistants.md)."""
