"""Operators' commands: status, doctor, ingest, dead letters, tables. No worker imports this package."""
