"""`penstock admin monitor`: measure queues, dead letters and the ledger at intervals."""
