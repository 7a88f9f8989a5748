"""The in-memory queue: the reference implementation, for tests and simulations.

- `broker`: the broker of one client
- `store`: the queues that all clients share
"""
