"""The benchmarks behind the README's figures: all with `make bench`, one with `python -m benchmarks.chain`."""
