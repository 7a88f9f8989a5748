"""The Spark data source: objects of JSON lines become typed rows, exactly, quickly, and one bad line or object alone.

The way of the data: `plan` cuts objects into partitions; in the executors `reading` takes one partition through
`contents` (whole lines of each object; `inflate` for gzip) and `blocks` (typed rows by Arrow, behind guards; `lines`
has the rule and the reasons) to rows with provenance, `quarantine` and `report`; `summary` says afterwards what counts.
`datasource` hands `reading` to Spark, `ddl` and `infer` make schemas, `api` is what the rest of the pipeline calls.

Another format joins beside `blocks` (a decoder of blocks of lines), another compression beside `inflate`, each named in
`plan.FORMATS` or told by `contents.read_parts`.
"""
