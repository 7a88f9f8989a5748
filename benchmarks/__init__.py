"""What the README quotes, for anyone to run: `make bench`, or one of them by `python -m benchmarks.chain` and so on."""
