"""Migrations of the ledger's tables. A released migration never changes."""
