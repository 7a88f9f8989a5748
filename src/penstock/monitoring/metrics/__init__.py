"""Metrics: the catalogue, the meters of one process, and the ways to export them."""
