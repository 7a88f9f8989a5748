"""List, replay, purge, export and import dead letters of a scope."""
