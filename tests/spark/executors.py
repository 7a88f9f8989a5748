"""Settings of sessions whose executors have a Python of their own."""

import json
from pathlib import Path
from typing import Any

from tests.services.spark_cluster import FROM_DRIVER, SparkCluster


def settings(cluster: SparkCluster, python: Path | str, **conf: str) -> dict[str, Any]:
    """Return the settings of an ingest whose executors run this Python."""
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # quicker to start
    own = {**FROM_DRIVER, "spark.pyspark.python": str(python), "spark.executor.extraJavaOptions": options, **conf}
    return {"spark_master": cluster.url, "spark_conf": json.dumps(own)}
