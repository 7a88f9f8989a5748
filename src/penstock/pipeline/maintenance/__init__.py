"""Table maintenance: garbage collection, compaction, repair, archiving and source cleanup."""
