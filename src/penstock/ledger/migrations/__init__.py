"""The ledger's tables, step by step. A step that was released never changes."""
