"""Simulate a rolling update: see `__main__`."""
