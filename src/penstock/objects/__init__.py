"""What an object is: identity, notifications, the scanner, and stores that read exactly one version."""
