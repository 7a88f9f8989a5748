"""Whose turn it is: weighted rotation over lines. Values in, values out, whatever a line is.

Each line has a virtual time, which its messages move on by 1/weight each; the line that is furthest behind is asked
first. Lines that are always full thus get messages in proportion to their weights, however many a read brings. A line
that had nothing does not save up turns: when it is served again, its time begins where the others are now (start-time
fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996).
"""

from collections.abc import Sequence


class Rotation:
    """The turns of lines, by their index. One thread's."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = tuple(weights)
        self._times = [0.0] * len(self._weights)
        self._busy = [False] * len(self._weights)
        self._now = 0.0  # never goes back: the time at which the last turn began
        self._turn = 0
        self._last_turns = [0] * len(self._weights)

    def order(self) -> Sequence[int]:
        """Whom to ask, in order; among equals the one that was served longest ago."""
        return sorted(range(len(self._weights)), key=lambda line: (self._times[line], self._last_turns[line]))

    def passed(self, line: int) -> None:
        """It had nothing to give, or no room to take it."""
        self._busy[line] = False

    def served(self, line: int, messages: int) -> None:
        """It gave that many messages."""
        if not self._busy[line]:
            self._times[line] = max(self._times[line], self._now)
        self._busy[line] = True
        self._now = max(self._now, self._times[line])
        self._times[line] += messages / self._weights[line]
        self._turn += 1
        self._last_turns[line] = self._turn
