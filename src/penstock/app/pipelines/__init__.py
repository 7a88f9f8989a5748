"""Declared pipelines: their declaration, the `Pipeline` object, serving one in a worker, and running one alone."""
