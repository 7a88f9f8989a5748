"""The story of one object: every line about it, over attempts and workers, in the order of time."""

from collections.abc import Sequence

from penstock.monitoring.diagnoses.lines import Line

_OF_ATTEMPTS = frozenset(
    {"batch.claimed", "batch.written", "batch.committed", "run.failed", "attempt.abandoned"}
)  # what befalls an attempt befalls its objects


class Story:
    """Takes lines in any order. What is kept grows with the object's lines, and with the attempts of all objects."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._own: list[Line] = []
        self._of_attempts: dict[str, list[Line]] = {}

    def take(self, line: Line) -> bool:
        """Answers whether it names the object."""
        objects = line.fields.get("objects")
        if line.name("object") == self._uri or (isinstance(objects, list) and self._uri in objects):
            self._own.append(line)
            return True
        attempt_id = line.name("attempt_id")
        if line.event in _OF_ATTEMPTS and attempt_id is not None:
            self._of_attempts.setdefault(attempt_id, []).append(line)
        return False

    def lines(self) -> Sequence[Line]:
        """All of it."""
        attempts = {line.name("attempt_id") for line in self._own} - {None}
        others = [line for attempt in attempts for line in self._of_attempts.get(attempt or "", ())]
        return sorted([*self._own, *others], key=lambda line: line.ts)
