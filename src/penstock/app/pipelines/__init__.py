"""Declared pipelines: what users say of one, the value they hold, serving it in a worker, running it to its end."""
