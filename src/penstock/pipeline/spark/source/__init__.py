"""The Spark data source: objects made of lines become typed rows, and a bad line or object fails alone.

Data flow: `plan` cuts objects into partitions according to `options`. In the executors, `reading` takes one partition
through `contents` (whole lines of each object; `inflate` for compressed ones), `csv_records` (CSV headers and records
with line breaks) and a decoder to rows with provenance, and writes `quarantine` files and a report. `report` then
decides which rows count. `datasource` connects `reading` to Spark and is the API for the rest of the pipeline; `ddl`
and `infer` make schemas.

A decoder turns blocks of lines into typed rows with Arrow's readers behind guards: `jsonl` by the rule in `lines`,
`csv` by the one in `csv_lines`, and text in `decoders`; `blocks` has the shared part. To add a format, name it in
`options.FORMATS` and `decoders`; to add a compression, add it to `inflate.CODECS`.
"""
