"""Penstock's worker on SQS beside a bare loop of boto3: see `__main__`."""
