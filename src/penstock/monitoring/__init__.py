"""Turn events into log lines, metrics, traces and error reports."""
