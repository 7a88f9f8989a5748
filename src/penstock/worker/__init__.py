"""The runtime: it fetches, batches, runs, heartbeats, settles and stops; what the work is, only the handler knows.

Duties, a module each: `worker` (what users see), `line` (a queue and what serves it), `shift` (the order of a life:
serve, drain, give back, close), `loop` (the broker's thread), `exchange` (its turns at the broker), `asking` (which
queue is asked when), `hearing` (being told of arrivals), `rotation` (whose turn it is), `intake` (deliveries held and
not begun), `batcher` (when a batch is full), `executors` (the executions of a line), `places` (the threads they run
on), `flight` (one batch at work), `endings` (what becomes of it), `upkeep` (what handlers do when idle), `heartbeat`
(leases and claims), `settler` (how deliveries end), `shutdown` (signals, giving back), `stacks` (what every thread is
doing), `pulse` (when the threads last moved), `lag` (how late they move), `helper` (a thread of the worker's own), and
`settings` (arithmetic). `parts` and `served_line` put them together.
"""
