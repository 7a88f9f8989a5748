"""A queue in the memory of this process: the reference implementation, for tests and simulations.

- `broker`: the broker of one client
- `store`: the queues that all clients share
"""
