"""Brokers: one package each, and `shared` for the rules that several of them follow."""
