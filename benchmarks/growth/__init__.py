"""Cost per unit by size: of objects, ledger rows, commits, messages and groups. See `benchmarks.growth.__main__`."""
