"""Publish, repair, compact, clean up and inspect tables and their batches."""
