"""Metrics: one table of what is counted, the counts of one process, and the ways in which they are read."""
