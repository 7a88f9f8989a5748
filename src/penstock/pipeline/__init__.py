"""Objects into a table, by batches: claim, run on an engine, commit, publish.

`attempt` drives one batch through the protocol and knows no Spark; `engine` is what it asks to do the data work, and
`spark_engine` answers with Spark. `publish` makes committed batches visible, `gc` deletes what was abandoned.
"""
