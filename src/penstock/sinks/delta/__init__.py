"""The Delta sink: files and position published in one conditional commit.

- `sink`: the sink; `log`: read and write the Delta log; `features`: which tables may be written; `folder`: which places
"""
