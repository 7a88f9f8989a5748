"""What one look of the monitor found. A number that could not be seen is None, or not there; never an old one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.messaging.broker import AgeSource

Source = Literal["broker", "cloudwatch", "ledger", "tables"]
Tier = Literal["dlq", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
    """One queue. An age is 0 where nothing is there that could have one, and None where nobody can tell."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_message_age_seconds: float | None
    oldest_message_age_source: AgeSource
    oldest_visible_message_age_seconds: float | None
    oldest_visible_message_age_source: AgeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersLook:
    """The dead letters of one tier. ``queue`` is whose they are; of a tier that several queues share, its own name."""

    queue: str
    tier: Tier
    letters: int
    oldest_age_seconds: float | None  # since the first of them died


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLook:
    """One pipeline or object handler, as the ledger has it."""

    pipeline: str
    objects: Mapping[str, int]  # by state
    oldest_unprocessed_age_seconds: float
    overdue: int
    committed_seq: int
    missing: int | None  # at the latest reconcile, if there was one
    commit_to_publish_lag_seconds: float | None = None  # None: it has no table, or the table could not be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything, at about ``at`` (epoch seconds)."""

    at: float
    queues: Sequence[QueueLook] = ()
    dead_letters: Sequence[LettersLook] = ()
    pipelines: Sequence[PipelineLook] = ()
    up: Mapping[Source, bool] = field(default_factory=dict)  # whether it could be seen, of what there is to be seen
    errors: Mapping[Source, str] = field(default_factory=dict)
