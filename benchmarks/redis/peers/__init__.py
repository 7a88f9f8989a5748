"""The Python contestants, one module each, with PACKAGES, worker() and sender(), which peer.py uses."""
