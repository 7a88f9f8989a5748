"""Measure the ledger for the monitor: waiting and overdue objects, and batches committed but not yet visible.

Measuring takes at most about a hundredth of the time: a slow ledger is measured less often.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.app.paths import TablePaths
from penstock.app.system_health import HasSettled, PipelineHealth, PipelineReader
from penstock.events import Bus
from penstock.messaging.clock import Clock

if TYPE_CHECKING:
    from penstock.app.tables import Tables
    from penstock.ledger import Ledger

SHARE = 100.0  # rest after a measurement, as a multiple of its duration
REST_SECONDS_MAX = 300.0


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
        self._reader = PipelineReader(overdue_after_seconds=overdue_after_seconds, clock=clock)
        self._clock = clock
        self._latest: Sequence[PipelineHealth] = ()
        self._read_at = 0.0  # monotonic, as is the next
        self._not_before = 0.0

    def measure(self, *, has_settled: HasSettled) -> Sequence[PipelineHealth]:
        """Return the health of each pipeline, cached for a while if measuring was slow. See `PipelineReader.read`.

        Raises `TemporaryError` if the ledger is unavailable.
        """
        began_at = self._clock.monotonic()
        if self._latest and began_at < self._not_before:
            return [_aged(one, began_at - self._read_at) for one in self._latest]
        self._latest = ()
        ledger = self._ledger()
        if ledger is None:
            return ()
        self._latest = self._reader.read(ledger, self._pipelines, has_settled=has_settled)
        self._read_at = self._clock.monotonic()
        self._not_before = self._read_at + min(SHARE * (self._read_at - began_at), REST_SECONDS_MAX)
        return self._latest


def _aged(health: PipelineHealth, seconds: float) -> PipelineHealth:
    """Return the health with its age increased by ``seconds``."""
    oldest = health.oldest_unprocessed_age_seconds
    return replace(health, oldest_unprocessed_age_seconds=None if oldest is None else oldest + seconds)


class TableWatch:
    """Measure how far the tables of pipelines lag behind the ledger.

    For one thread. Needs the packages of the extra.
    """

    def __init__(self, table_paths: Mapping[str, TablePaths], *, ledger: "Callable[[], Ledger | None]") -> None:
        self._table_paths = table_paths
        self._ledger = ledger
        self._tables: dict[str, Tables] = {}
        self._shown: dict[str, int] = {}  # the last batch up to which all are visible, by pipeline

    def lag_seconds(self, pipeline: str, committed_seq: int) -> float | None:
        """Return the age of the oldest batch up to ``committed_seq`` that is not visible.

        0 if all are, None without a table. Raises `PublishHalted` if table and ledger do not belong together, and
        `TemporaryError`.
        """
        table_paths, ledger = self._table_paths.get(pipeline), self._ledger()
        if table_paths is None or ledger is None:
            return None
        shown = self._shown.get(pipeline, 0)
        if committed_seq < shown:  # the ledger was rolled back and reuses numbers
            shown = 0
        if committed_seq > shown:  # otherwise nothing is new, and no table has to be opened
            shown = self._open_tables(table_paths, ledger).shown_to(shown, committed_seq)
            self._shown[pipeline] = shown
        if shown >= committed_seq:
            return 0.0
        return ledger.ages.seconds_since_commit(pipeline, shown + 1)

    def unpublished(self, pipeline: str, committed_seq: int) -> int:
        """Return the number of batches up to ``committed_seq`` that are not visible, as `lag_seconds` found last."""
        return max(0, committed_seq - self._shown.get(pipeline, 0))

    def _open_tables(self, table_paths: TablePaths, ledger: "Ledger") -> "Tables":
        if table_paths.pipeline not in self._tables:
            from penstock.app.tables import Tables

            self._tables[table_paths.pipeline] = Tables(table_paths, ledger, partition_by=None, bus=Bus())
        return self._tables[table_paths.pipeline]
