"""Background jobs that a worker runs beside its queues, each in a thread of its own."""
