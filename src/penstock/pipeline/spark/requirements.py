"""The packages that Spark's Python workers need, by the name of their import, with the oldest version that works.

Penstock itself is not among them: it is shipped (`penstock.pipeline.spark.shipping`). Measured with executors that have
nothing else; PySpark also imports pandas if it is installed.
"""

from collections.abc import Mapping

REQUIRED: Mapping[str, str] = {"pyarrow": "18", "numpy": "1.26", "zstandard": "0.23"}
FOR_S3: Mapping[str, str] = {"boto3": "1.40", "obstore": "0.10"}
FOR_LEDGER: Mapping[str, str] = {"pydantic": "2.10", "sqlalchemy": "2.0.36", "tenacity": "9", "ulid": "3"}
"""For a reconcile that reads the ledger of a server in tasks, besides that server's driver."""
