"""Background jobs that a worker runs beside its queues, each in its own thread."""
