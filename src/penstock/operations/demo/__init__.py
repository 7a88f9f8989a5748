"""The two halves of `penstock demo`: messages without Spark, and files on Spark, each with a kill and a check."""

import os

PREFIX = "PENSTOCK_"  # of the settings in the environment


def environment_without_settings() -> dict[str, str]:
    """Return the environment for a process of the demo: the user's settings must not change what it does."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}
