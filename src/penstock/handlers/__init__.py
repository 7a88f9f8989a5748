"""Users' functions as handlers: declare, call, decide, record.

- `declaration`, `durations`, `context`: what users write and what their functions receive
- `call`: one delivery from opening the message to its settlement; `decision`: outcome to settlement, pure
- `function_call`, `batch_call`, `process_call`: call a function in a thread, on the event loop, or in a child process
- `keys`, `once`: idempotency claims in the ledger
- `breaker`, `outage`: stop receiving while a dependency fails
- `schedule`, `ticker`: messages sent by the clock
- `function_handler`: the handler that the worker runs
"""
