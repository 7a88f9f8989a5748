"""The Spark data source: objects of lines become typed rows, exactly, quickly, and one bad line or object alone.

The way of the data: `plan` cuts objects into partitions, as `options` say; in the executors `reading` takes one
partition through `contents` (whole lines of each object; `inflate` for compressed ones), `headers` (the names of CSV's
columns) and a decoder to rows with provenance, `quarantine` and `report`; `summary` says afterwards what counts.
`datasource` hands `reading` to Spark, `ddl` and `infer` make schemas, `api` is what the rest of the pipeline calls.

A decoder makes typed rows of blocks of lines, by Arrow's readers, behind guards: `jsonl` by the rule in `lines`,
`delimited` by the one in `csv_lines`, and `text`; `blocks` has what they share. Another format joins beside them, named
in `options.FORMATS` and `decoders`; another compression joins `inflate.CODECS`.
"""
