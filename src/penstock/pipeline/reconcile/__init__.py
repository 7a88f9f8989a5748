"""Reconcile: what is there, but for what is known. Objects that exist and were never processed are found on Spark.

Existing objects (`folder`, `listing`, `inventory`) are rows of one form (`existing`), known ids come out of the ledger
in bulk (`known`), and `missing` is the first without the second.
"""
