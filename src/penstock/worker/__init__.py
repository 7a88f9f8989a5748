"""The worker: receive messages, extend their leases, call the handlers, settle, and stop in order.

- `worker`, `lifecycle`: one worker and its parts, from start to stop
- `broker_loop`: the I/O thread, which receives and settles; `queue_scheduler`: chooses the queues to poll
- `prefetch`, `batcher`: deliveries held until their batch is complete
- `executor`, `running_batch`, `pools`: run batches, and end those that time out
- `leases`: extend message leases and claims; `settler`: apply settlements
- `shutdown`: signals and the order of a stop; `liveness`: health of the threads; `jobs`: background jobs of a handler
- `consumer`, `settings`: a consumer (one queue with its handler), and the limits of the worker

The docstring of `executor` shows the chain that each message passes, from receive to settle.
"""
