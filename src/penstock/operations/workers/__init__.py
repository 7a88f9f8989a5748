"""Operations on the workers of a data directory: select, signal and drain them, and find those that seem stuck."""
