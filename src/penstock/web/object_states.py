"""The words and colours of objects' states on the pages, and the counts of the newest reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.ledger.records import ObjectState
from penstock.operations.status.model import PipelineStatus
from penstock.operations.status.watch import StatusFrame
from penstock.web.texts import Texts

OPEN = frozenset({ObjectState.DEAD, ObjectState.UNPROCESSED, ObjectState.PROCESSING})
"""The states that a list shows first: something may have to be done about these objects."""

KINDS: Mapping[ObjectState, str] = {
    ObjectState.DEAD: "bad",
    ObjectState.UNPROCESSED: "warn",
    ObjectState.PROCESSING: "warn",
    ObjectState.PROCESSED: "good",
}
"""The colours of badges; other states have none."""


WORDS: Mapping[ObjectState, str] = {
    ObjectState.DEAD: "failed",
    ObjectState.UNPROCESSED: "waiting",
    ObjectState.PROCESSING: "being processed",
    ObjectState.PROCESSED: "processed",
    ObjectState.DELETED: "deleted before it was read",
    ObjectState.SUPERSEDED: "superseded before it was read",
    ObjectState.RETRACTED: "retracted",
}
"""The words for states, in the order of a list of filters."""


def state_words(texts: Texts) -> Mapping[ObjectState, str]:
    """Return the words for states in this language."""
    return {state: texts(word) for state, word in WORDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCount:
    """The number of objects in one state, as of the newest reading; None if there is no reading."""

    state: ObjectState
    word: str
    count: int | None


def state_counts(frame: StatusFrame, texts: Texts, *, pipelines: Sequence[str]) -> Sequence[StateCount]:
    """Return the number of objects in each state, of these pipelines."""
    known = statuses(frame, pipelines)
    return [
        StateCount(
            state=state,
            word=word,
            count=sum(one.objects.get(state, 0) for one in known) if frame.status is not None else None,
        )
        for state, word in state_words(texts).items()
    ]


def statuses(frame: StatusFrame, pipelines: Sequence[str]) -> Sequence[PipelineStatus]:
    """Return the status of these pipelines in the newest reading, as far as it has them."""
    return [] if frame.status is None else [one for one in frame.status.pipelines if one.pipeline in pipelines]
