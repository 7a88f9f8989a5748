"""Queues: one package per broker, and `shared` for the rules that several of them follow."""
