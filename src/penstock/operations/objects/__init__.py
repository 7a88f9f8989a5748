"""Import objects as processed, and retry objects that ended unprocessed."""
