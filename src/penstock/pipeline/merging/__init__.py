"""Merge rows by key: the last row of each key is in the table, and a deleted key is not.

Which row of a key is the last one depends on the rows alone (`order`), so the table depends only on which objects were
processed. A run folds its batch (`penstock.pipeline.spark.fold`); a publish compares the batch with the table and with
the deletes of earlier batches (`merger`), which are remembered beside the table (`tombstones`).
"""
