"""Dead letters: when they come back by themselves, and what people can do with the rest.

`policy` decides what becomes of a letter; `handler` lets a worker replay those of the first tier automatically.
"""
