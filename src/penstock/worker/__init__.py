"""The runtime: it fetches, batches, runs, heartbeats, settles and stops; what the work is, only the handler knows.

Duties, a module each: `worker` (what users see), `shift` (the order of a life: serve, drain, give back, close), `loop`
(the broker's thread), `intake` (deliveries held and not begun), `batcher` (when a batch is full), `executors` (batches
at work), `heartbeat` (leases and claims), `settler` (how deliveries end), `shutdown` (stop signals, giving back),
and `settings` (arithmetic).
"""
