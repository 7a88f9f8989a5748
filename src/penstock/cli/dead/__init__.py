"""`penstock dead`: list, show, replay, purge, export and import dead letters."""
