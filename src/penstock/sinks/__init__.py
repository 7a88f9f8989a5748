"""Tables that show the rows of batches: the protocols, the formats Delta and Iceberg, and the parts that they share.

`sink` has the protocols, `registry` the formats, `checks` the checks of locations and files. `manifest`, `parquet`,
`schema`, `partitions` and `derived` describe a batch's files, their columns and their partition values.
"""
