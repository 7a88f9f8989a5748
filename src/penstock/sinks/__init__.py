"""Make rows visible in tables: the sink protocol, its checks, manifests, table schemas, Parquet files, and the Delta
sink."""
