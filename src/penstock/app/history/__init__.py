"""History for charts: queues and pipelines over the last hour, day and two weeks, in one small file.

- `points`: the values that are kept, and how several of them become one
- `ring`: the slots of the file: writing a sample, rolling it up, reading a range
- `file`: the file itself: creating it, and setting a broken one aside
- `history`: `HistoryWriter` and `HistoryReader`, which never fail
"""
