"""Compare Redis consumers: `python -m benchmarks.redis`. docs/why/benchmarks.md describes the method."""
