"""Objects: identity, notifications, listings and scans, source cleanup, and stores that read exactly one version."""
