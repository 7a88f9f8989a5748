"""Make rows visible in tables: the sink protocol, manifests, table schemas, Parquet files, and the Delta sink."""
