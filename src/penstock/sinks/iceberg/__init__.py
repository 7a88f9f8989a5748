"""The Iceberg sink: files and position published in one conditional commit.

`sink` publishes. `folder` and `catalog` store a table's metadata, in its folder or in a catalog of PyIceberg's
configuration; `choice` finds out which of both a table has. `snapshots` makes snapshots, with a `position` for each
pipeline; `log` reads and expires them. `columns` converts schemas and statistics, `partitioning` partition fields and
their values. `features` checks which tables may be written. `file_io` and `filesystem` give PyIceberg and Arrow access
to the table's files.
"""
