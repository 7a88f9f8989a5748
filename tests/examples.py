"""The number of generated examples: a third by default, all of them in the long matrix.

For tests that cost tens of seconds of CPU. They have the mark `generated`, so that the long matrix runs them again.
"""

import os

LONG = "TESTS_LONG"
FEWEST = 8


def examples(most: int) -> int:
    return most if os.environ.get(LONG) else max(FEWEST, most // 3)
