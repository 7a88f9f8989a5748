"""The Python contestants, a module each: PACKAGES, worker() and sender(). peer.py calls them."""
