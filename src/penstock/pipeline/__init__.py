"""Objects into a table, by batches: claim, run on an engine, commit, publish.

`batch` opens and settles one batch of notifications, and `attempt` drives its objects through the protocol; both know
no Spark. `engine` is what they ask to do the data work, and `spark_engine` answers with Spark. `publish` makes
committed batches visible, `gc` deletes what was abandoned.
"""
