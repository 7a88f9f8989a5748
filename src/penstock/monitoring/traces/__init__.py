"""Traces by OpenTelemetry: `tracing` is what others are handed, `provider` where spans go, `broker` and `handler` what
is wrapped, `listener` what events add, `context` how a trace travels, `spans` what several kinds of spans say, `names`
what attributes are called.

Nothing outside this folder, and `metrics/otel.py`, knows OpenTelemetry; nothing imports it while it is switched off.
"""
