"""The Delta sink: files and position published in one conditional commit.

`sink` publishes; `log` reads and writes the Delta log; `statistics` encodes the bounds in it; `features` checks which
tables may be written; `folder` names the log's folder, and checks paths.
"""
