"""Where files lie: a folder of this machine, or a prefix in S3. And how this process speaks to AWS."""
