"""Help with Spark clusters: pack what executors need."""
