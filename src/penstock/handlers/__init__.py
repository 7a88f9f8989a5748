"""Users' functions as handlers: declare, call, decide, record.

- `declaration`, `durations`: the options that users write; `context`: the arguments of their functions
- `call`: one delivery from opening the message to its settlement, in a thread or on the event loop
- `decision`: map an outcome to a settlement, pure
- `batch_call`, `process_call`: the same for several deliveries at once, and in a child process
- `keys`, `once`: idempotency claims in the ledger
- `breaker`, `outage`: stop receiving while a dependency of the handler, or the ledger or a store, fails
- `schedule`, `ticker`: scheduled messages
- `function_handler`: the handler that the worker runs
"""
