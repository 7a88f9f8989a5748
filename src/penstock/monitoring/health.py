"""What a process answers when its platform asks how it is: three questions, each answered by yes or no and a sentence.

Live: would a restart help? Ready: does it do the work it is there for? Started: has it begun? What the answers are made
of is told by whoever knows the process; here is only what the endpoint asks.
"""

from collections.abc import Callable
from dataclasses import dataclass

Answer = tuple[bool, str]  # the sentence says why, for people
Question = Callable[[], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The three questions. Any thread may ask, at any moment; each is answered at once and asks no server."""

    live: Question
    ready: Question
    started: Question
