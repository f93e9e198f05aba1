"""The history: finished jobs and attempts, written beside the journal for queries."""
