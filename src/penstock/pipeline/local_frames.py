"""Files that a path leads to as a DataFrame, by Spark's own reader."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StringType, StructField, StructType

from penstock.sinks.reading import TableFile
from penstock.storage.files import Files

_GLOB = re.compile(r"([{}\[\]*?\\])")
_FILE = "__penstock_file"


@dataclass(frozen=True, slots=True)
class LocalReader:
    """A `penstock.pipeline.frames.Reader` of the files of a table in a folder."""

    spark: SparkSession
    root: Files

    def rows(self, stored: StructType, files: Sequence[TableFile]) -> DataFrame:
        """``recursiveFileLookup`` keeps Spark from taking folders for partitions."""
        reader = self.spark.read.schema(stored).option("recursiveFileLookup", "true")
        return reader.parquet(*(_GLOB.sub(r"\\\1", self._address(file)) for file in files))

    def valued_rows(self, stored: StructType, added: StructType, files: Sequence[TableFile]) -> DataFrame:
        """The values are joined to the files' names."""
        jvm: Any = self.spark.sparkContext._jvm  # Spark names files as Hadoop escapes them, so Hadoop is asked
        path_of = jvm.org.apache.hadoop.fs.Path
        rows = [
            (
                path_of(self._address(file)).toUri().getRawPath(),
                *(file.partition_values[name] for name in added.names),
            )
            for file in files
        ]
        names = self.spark.createDataFrame(rows, StructType([StructField(_FILE, StringType()), *added]))
        path_read = functions.regexp_replace(
            "_metadata.file_path", "^file:/*", "/"
        )  # one slash or three, by Spark's version
        frame = self.rows(stored, files)
        return frame.withColumn(_FILE, path_read).join(functions.broadcast(names), _FILE, "left")

    def _address(self, file: TableFile) -> str:
        return f"file://{file.path}" if file.path.startswith("/") else f"file://{self.root}/{file.path}"
