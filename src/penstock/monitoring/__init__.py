"""Watching: events become lines of the log, and failures reach the user's error hook."""
