"""The health of everything in a scope: `penstock status` and `penstock top`."""
