"""Redis consumers side by side: `python -m benchmarks.redis`. docs/benchmarks.md tells the method."""
