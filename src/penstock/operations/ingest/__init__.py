"""`penstock ingest`: load a folder, an S3 prefix or a queue of notifications into a table, without code."""
