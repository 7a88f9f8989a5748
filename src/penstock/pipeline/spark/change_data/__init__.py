"""The DataFrame side of `penstock.transforms`: change events of databases become rows, an operation and a position.

Everything is a column expression, so nothing is shipped to executors, and Spark Connect runs it like a classic session.
A row that cannot be merged raises in Spark, which fails the object that has it, with a sentence.
"""
