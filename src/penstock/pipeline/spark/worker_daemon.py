"""The process that forks the Python workers of a local session: ``python -m penstock.pipeline.spark.worker_daemon``.

It is PySpark's own daemon with two differences. Spark puts an archive of PySpark's sources first on the path, in which
nothing is compiled, so each worker would compile PySpark again; here the installed package is imported. And PySpark's
worker is imported before the fork, and not by each worker again.

Imports that start threads, such as Arrow's, must not be here: a fork copies only one thread.
"""

import sys

ARCHIVE = "pyspark.zip"

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not path.endswith(ARCHIVE)]

    import pyspark.worker  # noqa: F401 # for the workers
    from pyspark.daemon import manager

    manager()
