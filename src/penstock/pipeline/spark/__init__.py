"""Run pipelines on Spark: session, data source, one run, writing, and checks of the cluster."""
