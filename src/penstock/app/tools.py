"""What every part of a pipeline's work is handed. Imports nothing of Spark: object handlers are reconciled without."""

from dataclasses import dataclass

from penstock.events import Bus
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.worker.shutdown import StopSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every part of a pipeline's work is handed."""

    stop: StopSignal
    clock: Clock
    bus: Bus
    probe: Probe
    tracing: Tracing = NO_TRACING
