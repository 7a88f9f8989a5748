"""Messages, deliveries, settlements, and the Protocols that other packages implement.

- `message`, `delivery`, `settlement`: the values that move through a queue
- `broker`, `handler`, `clock`, `tracing`: the Protocols
- `schema`: the contract of a queue, and its bodies; `declarations`: checks of users' functions and options
- `death`, `replay`: attributes of dead-lettered and of replayed messages; `failure`: exceptions as text
- `call`: control and context of one call of a user's function; `backoff`, `age_estimate`: pure functions
- `threads`, `forks`: starting threads, and processes that fork
- `steps`: the steps at which tests kill a process; `addresses`: masking of passwords
"""
