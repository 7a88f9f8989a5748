"""The command line: one module a verb group. It prints; everything else is told to it."""
