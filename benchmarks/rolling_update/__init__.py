"""A rolling update acted out: see `__main__`."""
