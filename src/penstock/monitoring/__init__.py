"""Events become log lines, metrics, traces and error reports."""
