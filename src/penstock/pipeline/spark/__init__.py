"""Everything that knows Spark: the session, the reader, one run, writing, and the checks of a cluster."""
