"""The pipeline as the worker sees it: a handler whose unit of work is a batch of notifications."""

from collections.abc import Callable, Mapping, Sequence

from penstock.errors import InvalidMessage
from penstock.events import AttemptAbandoned
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Place
from penstock.pipeline.attempt import AttemptSettings, Surroundings
from penstock.pipeline.batch import BatchExecution


class PipelineHandler:
    """A `penstock.messaging.handler.BatchHandler`."""

    def __init__(self, settings: AttemptSettings, around: Surroundings) -> None:
        self._settings = settings
        self._around = around

    @property
    def name(self) -> str:
        return self._settings.pipeline

    @property
    def place(self) -> Place:
        return Place.THREAD  # few and long: a run waits for Spark

    @property
    def timeout_seconds(self) -> float | None:
        return None

    def weigh(self, delivery: Delivery) -> int:
        """Bytes of the objects that the notification names; 0 for one that cannot be read."""
        try:
            return sum(ref.size_bytes for ref in self._around.parse(delivery.message.body).objects)
        except InvalidMessage:
            return 0

    def begin(self, deliveries: Sequence[Delivery]) -> BatchExecution:
        return BatchExecution(deliveries, self._settings, self._around)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        around = self._around
        jobs = {"claims": self.free_expired, **(around.publish_jobs or {"publish": around.publish})}
        return jobs if around.check_engine is None else {**jobs, "engine": around.check_engine}

    def free_expired(self) -> None:
        """Free what attempts hold that are past their lease."""
        for attempt_id in self._around.ledger.abandon_expired(self._settings.pipeline):
            self._around.bus.emit(
                AttemptAbandoned(pipeline=self._settings.pipeline, attempt_id=attempt_id, reason="its lease ran out")
            )
