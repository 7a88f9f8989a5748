"""DuckDB with its extension for Iceberg."""

from pathlib import Path

import duckdb
from duckdb_extensions import import_extension  # type: ignore[import-untyped]  # it has no types


def duckdb_with_iceberg(folder: Path) -> duckdb.DuckDBPyConnection:
    """Connect to a database in memory whose extensions are installed below a folder, without a download."""
    connection = duckdb.connect(config={"extension_directory": str(folder / "extensions")})
    for extension in ("avro", "iceberg"):
        import_extension(extension, con=connection)
        connection.load_extension(extension)
    return connection
