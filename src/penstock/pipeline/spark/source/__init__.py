"""The Spark data source: objects made of lines become typed rows, and a bad line or object fails alone.

Data flow: `plan` cuts objects into partitions according to `options`. In the executors, `reading` takes one partition
through the reader of its format (`readers`) to rows with provenance, and writes `quarantine` files and a `report`. In
the driver, `summary` then decides which rows count. `datasource` connects `reading` to Spark and is the API for the
rest of the pipeline; `ddl` and `infer` make schemas.

- Lines: `lines` takes them from `contents` (`inflate` for compressed objects), CSV through `csv_records` (headers, and
  records with line breaks), to a decoder: Arrow's readers behind the guards of `blocks`. `jsonl` follows the rule in
  `jsonl_lines`, `csv` the one in `csv_lines`. `rescue` wraps both for fields that no column takes.
- Objects with columns of their own: `columnar` (Parquet, ORC), `avro` and `own_reader` (functions of users) fit their
  rows to the declared columns with `fit_rows`, by the rule in `fit`.
- `documents` reads JSON documents, `binary` whole files.

To add a format, describe it in `formats.FORMATS` and name its reader in `readers`; to add a compression, add it to
`inflate.CODECS`.
"""
