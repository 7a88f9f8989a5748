"""Settings of sessions whose executors have a Python of their own."""

import json
from pathlib import Path
from typing import Any

from tests.services.jvm import QUICK_JVM
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster


def settings(cluster: SparkCluster, python: Path | str, **conf: str) -> dict[str, Any]:
    """Return the settings of an ingest whose executors run this Python."""
    own = {**FROM_DRIVER, "spark.pyspark.python": str(python), "spark.executor.extraJavaOptions": QUICK_JVM, **conf}
    return {"spark_master": cluster.url, "spark_conf": json.dumps(own)}
