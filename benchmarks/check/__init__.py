"""`make bench CHECK=1`: compare the ratios behind the README's figures with bounds."""
