"""Where messages wait: a module or a package for each broker, and beside them what several of them share.

`sqlite`, `memory` and `redis_streams` are the brokers. `rules` holds what all agree on, `attributes` how text is kept,
`arrivals` who waits in this process, `turns` how single calls make a turn.
"""
