"""Process objects into a table, batch by batch: claim, run on an engine, commit, publish.

`batch` opens and settles one batch of notifications; `attempt` claims, runs and commits its objects. Neither depends on
Spark: both call the protocol in `engine`, which `spark.engine` implements for pipelines and `objects.engine` for object
handlers. `publish` makes committed batches visible, and `maintenance.gc` deletes the files of abandoned attempts.
"""
