"""Events as log lines: the tables of lines, and the writer."""
