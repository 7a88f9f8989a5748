"""Process objects into a table, batch by batch: claim, run on an engine, commit, publish.

`batch` opens and settles one batch of notifications; `attempt` claims, runs and commits its objects. Neither depends on
Spark: both call the protocol in `engine`, which `spark.engine` implements for pipelines and `objects.engine` for object
handlers. `notifications` classifies failures and settles deliveries, `failures` tells failures of the infrastructure
from those of an object, and `reporting` emits the events. `publish` makes committed batches visible, and
`maintenance.gc` deletes the files of abandoned attempts.
"""
