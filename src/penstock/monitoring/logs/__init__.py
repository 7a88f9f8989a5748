"""Log events as lines: the table of log rows, the plans made from it, and the writer."""
