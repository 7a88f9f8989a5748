"""The Iceberg sink: files and position published in one conditional commit.

`sink` publishes; `folder` and `catalog` store a table's metadata, in its folder or in a catalog of PyIceberg's;
`snapshots` makes snapshots; `log` reads and expires them; `columns` converts schemas and statistics, `partitioning`
converts partition fields and their values; `features` checks which tables may be written.
"""
