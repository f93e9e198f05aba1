"""The history: a database of finished jobs and attempts, for queries. It is written after the journal."""
