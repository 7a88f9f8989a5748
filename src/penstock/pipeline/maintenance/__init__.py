"""Table maintenance: garbage collection, compaction, repair, archive and source cleanup."""
