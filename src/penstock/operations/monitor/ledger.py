"""Measure the ledger for the monitor: waiting and overdue objects, and batches committed but not yet visible.

Measuring takes at most about a hundredth of the time: a slow ledger is measured less often.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.app.paths import TablePaths
from penstock.events import Bus
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import Clock
from penstock.operations.monitor.look import PipelineSample

if TYPE_CHECKING:
    from penstock.app.tables import Tables
    from penstock.ledger import Ledger
    from penstock.ledger.queries import ProcessedCount

SHARE = 100.0  # rest after a measurement, as a multiple of its duration
REST_SECONDS_MAX = 300.0
COUNT_SECONDS_MIN, COUNT_SECONDS_MAX = 600.0, 21_600.0  # between two full counts of processed objects
COUNT_SHARE = 1_000.0


class LedgerWatch:
    """Measure these pipelines and object handlers. For one thread.

    ``ledger`` returns the ledger, or None if it does not exist yet.
    """

    def __init__(
        self,
        pipelines: Sequence[str],
        *,
        ledger: "Callable[[], Ledger | None]",
        overdue_after_seconds: float,
        clock: Clock,
    ) -> None:
        self._pipelines = pipelines
        self._ledger = ledger
        self._overdue_after_seconds = overdue_after_seconds
        self._clock = clock
        self._found: Sequence[PipelineSample] = ()
        self._found_at = 0.0  # monotonic, as is the next
        self._not_before = 0.0
        self._tallies: dict[str, tuple[ProcessedCount, float]] = {}  # by pipeline, with when to count anew (monotonic)

    def look(self) -> Sequence[PipelineSample]:
        """Return the samples, cached for a while if measuring was slow.

        Raises `TemporaryError` if the ledger is unavailable.
        """
        began_at = self._clock.monotonic()
        if self._found and began_at < self._not_before:
            return [_aged(one, began_at - self._found_at) for one in self._found]
        self._found = ()
        ledger = self._ledger()
        if ledger is None:
            return ()
        missing = {one.pipeline: one.missing for one in ledger.reconciliations()}
        found = [self._pipeline(ledger, pipeline, missing.get(pipeline)) for pipeline in self._pipelines]
        self._found, self._found_at = found, self._clock.monotonic()
        self._not_before = self._found_at + min(SHARE * (self._found_at - began_at), REST_SECONDS_MAX)
        return found

    def _pipeline(self, ledger: "Ledger", pipeline: str, missing: int | None) -> PipelineSample:
        waiting = ledger.ages.waiting(pipeline, overdue_after_seconds=self._overdue_after_seconds)
        processed = self._processed(ledger, pipeline)
        return PipelineSample(
            pipeline=pipeline,
            objects={
                state.value: processed if state is ObjectState.PROCESSED else waiting.objects[state]
                for state in ObjectState
            },
            oldest_unprocessed_age_seconds=waiting.oldest_age_seconds,
            overdue=waiting.overdue,
            committed_seq=waiting.committed_seq,
            missing=missing,
        )

    def _processed(self, ledger: "Ledger", pipeline: str) -> int:
        """Return the number of processed objects: a rare full count, updated from new batches in between."""
        now = self._clock.monotonic()
        known = self._tallies.get(pipeline)
        if known is not None and now < known[1]:
            tally = ledger.ages.brought_up(pipeline, known[0])
            self._tallies[pipeline] = (tally, known[1])
            return tally.processed
        tally = ledger.ages.tally(pipeline)
        rest_seconds = COUNT_SHARE * (self._clock.monotonic() - now)
        due_at = now + min(max(rest_seconds, COUNT_SECONDS_MIN), COUNT_SECONDS_MAX)
        self._tallies[pipeline] = (tally, due_at)
        return tally.processed


class TableWatch:
    """Measure how far the tables of pipelines lag behind the ledger.

    For one thread. Needs the packages of the extra.
    """

    def __init__(self, places: Mapping[str, TablePaths], *, ledger: "Callable[[], Ledger | None]") -> None:
        self._places = places
        self._ledger = ledger
        self._tables: dict[str, Tables] = {}
        self._shown: dict[str, int] = {}  # the last batch up to which all are visible, by pipeline

    def lag_seconds(self, look: PipelineSample) -> float | None:
        """Return the age of the oldest batch that is not visible: 0 if all are, None without a table.

        Raises `PublishHalted` if table and ledger do not belong together, and `TemporaryError`.
        """
        places, ledger = self._places.get(look.pipeline), self._ledger()
        if places is None or ledger is None:
            return None
        shown = self._shown.get(look.pipeline, 0)
        if look.committed_seq < shown:  # the ledger was rolled back and reuses numbers
            shown = 0
        if look.committed_seq > shown:  # otherwise nothing is new, and no table has to be opened
            shown = self._opened(places, ledger).shown_to(shown, look.committed_seq)
            self._shown[look.pipeline] = shown
        if shown >= look.committed_seq:
            return 0.0
        return ledger.ages.seconds_since_commit(look.pipeline, shown + 1)

    def _opened(self, places: TablePaths, ledger: "Ledger") -> "Tables":
        if places.pipeline not in self._tables:
            from penstock.app.tables import Tables

            self._tables[places.pipeline] = Tables(places, ledger, partition_by=None, bus=Bus())
        return self._tables[places.pipeline]


def _aged(look: PipelineSample, seconds: float) -> PipelineSample:
    """Return the sample with its age increased by ``seconds``."""
    oldest = look.oldest_unprocessed_age_seconds
    return replace(look, oldest_unprocessed_age_seconds=oldest + seconds if oldest else 0.0)
