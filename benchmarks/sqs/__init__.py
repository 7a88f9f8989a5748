"""Compare Penstock's worker on SQS with a bare loop of boto3: see `__main__`."""
