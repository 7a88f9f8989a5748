"""Redis consumers side by side: `python -m benchmarks.redis`. docs/why/benchmarks.md tells the method."""
