"""A small Spark session for tests, with the Java that Penstock finds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.app.spark import session_settings
from penstock.config import Settings
from penstock.pipeline.extra import require_spark
from penstock.pipeline.spark.classic import end_session, start_session
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.runtime import Session

MASTER = "local[2]"
END_SECONDS = 5.0


@contextmanager
def local_session(folder: Path) -> Iterator[Session]:
    """Start a session with scratch files and log in ``folder``. Raises `ConfigurationError` without Spark or Java."""
    require_spark()
    settings = Settings.model_construct(spark_master=MASTER, spark_driver_memory="1g")
    session = start_session(
        session_settings(settings, find_java(os.environ), scratch=folder / "scratch", log=folder / "spark.log")
    )
    try:
        yield session
    finally:
        end_session(session, at_once=False, seconds=END_SECONDS)
