"""Reconcile: find objects that exist in a source and were never processed.

`existing` (local folders, S3 listings) and `inventory` read existing objects into DataFrames of one schema; `missing`
subtracts the ids that the ledger knows, on Spark. `alone` does the same without Spark. `manifest` reads S3 Inventory
manifests.
"""
