"""`penstock ingest`: a folder, a prefix or a queue of notifications into a table, without code."""
