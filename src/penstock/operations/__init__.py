"""What operators run: status, doctor, ingest, dead letters, tables. No worker imports it."""
