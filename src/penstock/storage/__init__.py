"""Files in a local folder or below an S3 prefix, SQLite files, and this process's access to AWS."""
