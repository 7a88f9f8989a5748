"""Penstock: reliable queue consumers, and S3 objects into an exactly-once table on Spark."""
