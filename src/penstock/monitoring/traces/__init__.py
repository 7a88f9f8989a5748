"""Traces through OpenTelemetry.

`tracing` is the entry point and adds events to spans, `provider` decides where spans go, `broker` and `handler` wrap
traced objects, `context` has the propagation of a trace, the attribute names, and links and errors of spans.

Only this package and `metrics/otel.py` import OpenTelemetry, and only if it is switched on.
"""
