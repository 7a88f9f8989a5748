"""The checks of `penstock doctor`."""
