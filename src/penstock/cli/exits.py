"""Exit codes that verbs choose themselves; those of errors stand on their classes in `penstock.errors`."""

FAILED = 1
CHECK_FOUND_PROBLEMS = 3
TEMPORARY_FAILURE = 75
INTERRUPTED = 130
