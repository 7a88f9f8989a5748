"""Users' functions as handlers: what is declared, how one is called, and what comes of the call.

Duties, a module each: `declaration` (what a user says of a function), `durations` (human units), `decision` (from an
answer or exception to a settlement; pure), `context` (what a function is handed), `call` with `plain_call`
and `async_call` (one delivery), `batch_call` (several), `keys` and `once` (an idempotent handler's claim), `children`,
`child` and `child_call` (processes of their own: as the parent has them, from within, and one delivery),
`function_handler` (the seam to the worker), `schedule` and `ticker` (messages sent by the clock).
"""
