"""Transforms of ingests with two batches in flight on a cluster. Copied into the folder where the ingest runs.

Functions for Spark's Python workers are nested, so that Spark pickles them by value and the workers do not import this
module.
"""

import threading

import cluster_transforms  # type: ignore[import-not-found] # beside this file's copy
from pyspark.sql import DataFrame

PATIENCE_SECONDS = 120.0

_both = threading.Barrier(2)


def faulty_together(frame: DataFrame) -> DataFrame:
    """Wait until the transforms of two batches are here, and inject the faults of `cluster_transforms` into both."""
    _both.wait(PATIENCE_SECONDS)
    transformed: DataFrame = cluster_transforms.faulty(frame)
    return transformed
