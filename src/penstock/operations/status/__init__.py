"""The status of everything in a scope: `penstock status` and `penstock status --watch`."""
