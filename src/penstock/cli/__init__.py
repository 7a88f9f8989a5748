"""The command line: one module per command. Commands print; libraries below only emit events."""
