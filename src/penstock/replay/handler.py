"""The automatic replayer as the worker sees it: a handler whose queue is a first tier."""

from collections.abc import Callable, Mapping, Sequence

from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Place
from penstock.replay.execution import NAME, Desk, ReplayExecution
from penstock.replay.forgetting import Forgetting


class ReplayHandler:
    """A `penstock.messaging.handler.BatchHandler` for one first tier."""

    def __init__(self, desk: Desk, forgetting: Forgetting) -> None:
        self._desk = desk
        self._forgetting = forgetting

    @property
    def name(self) -> str:
        return NAME

    @property
    def place(self) -> Place:
        return Place.POOL

    @property
    def timeout_seconds(self) -> float | None:
        return None

    def weigh(self, delivery: Delivery) -> int:
        return len(delivery.message.body)

    def begin(self, deliveries: Sequence[Delivery]) -> ReplayExecution:
        return ReplayExecution(deliveries, self._desk)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"replays": self._forgetting.care}
