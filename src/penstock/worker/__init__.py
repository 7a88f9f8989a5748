"""The worker: receive -> lease -> call -> settle, and stop in order.

- `worker`, `lifecycle`, `wiring`: a worker and its parts, from start to stop
- `broker_loop`: the thread that receives and settles; `queue_scheduler`: which queue is polled next
- `prefetch`, `batcher`: deliveries held until a batch is complete
- `executor`, `running_batch`, `pools`: run batches and end those that time out
- `leases`: extend message leases and claims; `settler`: apply settlements
- `shutdown`: signals and the order of a stop; `liveness`: health of the threads; `jobs`: background jobs of a handler
- `line`, `settings`: a queue with its handler, and the worker's limits
"""
