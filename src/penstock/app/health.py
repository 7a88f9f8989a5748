"""Report a worker's health: the responses to the platform's probes, and the gauges of its queues.

No probe queries the broker or the ledger. Metrics and the log report their outages; a restart would fix nothing and
would lose the work in progress.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.monitoring.health import Health, ProbeResult
from penstock.monitoring.metrics.meters import Meters
from penstock.worker.liveness import LagSampler, Liveness, Phase
from penstock.worker.shutdown import StopSignal

IN_FLIGHT, SLOTS = "worker_in_flight_messages", "worker_slots"
LAST_POLL, LAG = "worker_last_poll_timestamp_seconds", "loop_lag_seconds"


def worker_health(liveness: Liveness, stop: StopSignal) -> Health:
    """Return the probes of the worker with this liveness, in the process that ``stop`` ends."""
    return Health(live=lambda: live(liveness), ready=lambda: ready(liveness, stop), started=lambda: started(liveness))


def live(liveness: Liveness) -> ProbeResult:
    """Return False if the worker is stuck, so that only a restart helps. A starting or stopping worker is alive."""
    troubles = liveness.troubles
    return not troubles, "; ".join(troubles) or f"the worker is {liveness.phase}"


def ready(liveness: Liveness, stop: StopSignal) -> ProbeResult:
    """Return True if the worker takes messages."""
    if stop.requested or liveness.phase is Phase.STOPPING:
        return False, "the worker is stopping"
    if stop.paused or liveness.phase is Phase.PAUSED:
        return False, "the worker was asked to take no more messages"
    if liveness.phase is Phase.STARTING:
        return False, "the worker is starting"
    consumers = liveness.consumers()
    if not consumers:
        return True, "running background jobs only"
    halted = [consumer.queue for consumer in consumers if consumer.halted]
    waiting = [
        f"{consumer.queue} for {consumer.awaits}"
        for consumer in consumers
        if consumer.awaits is not None and not consumer.halted
    ]
    serving = [consumer.queue for consumer in consumers if consumer.awaits is None and not consumer.halted]
    sentences = [
        f"serving {', '.join(serving)}" if serving else "no queue is served" + (" yet" if waiting else " any more"),
        *([f"waiting: {', '.join(waiting)}"] if waiting else ()),
        *([f"halted until a restart: {', '.join(halted)}"] if halted else ()),
    ]
    return bool(serving), "; ".join(sentences)


def started(liveness: Liveness) -> ProbeResult:
    """Return True once the worker serves: its lifespans are entered and its queues are known."""
    begun = liveness.phase is not Phase.STARTING
    return begun, "the worker has started" if begun else "the worker is starting"


@contextmanager
def gauged(liveness: Liveness, meters: Meters | None, *, worker: str) -> Iterator[None]:
    """Inside the block, update the worker's gauges at each reading of the meters and sample the loop lag.

    Does nothing without meters.
    """
    if meters is None:
        yield
        return
    lag = LagSampler(
        clock=liveness.clock,
        observe=lambda seconds: meters.observe(LAG, (worker,), seconds),
        loop=lambda: liveness.loop(),
    )
    thread = threading.Thread(target=lag.run, name="penstock-lag", daemon=True)
    forget = meters.before_reading(lambda: update_gauges(liveness, meters, worker=worker))
    thread.start()
    try:
        yield
    finally:
        lag.end()
        forget()
        for name in (IN_FLIGHT, SLOTS, LAST_POLL):  # otherwise the last export would send outdated values
            meters.replace(name, {})


def update_gauges(liveness: Liveness, meters: Meters, *, worker: str) -> None:
    """Set the gauges of the worker's queues to their current values."""
    consumers = liveness.consumers()
    meters.replace(IN_FLIGHT, {(consumer.queue, worker): consumer.in_flight for consumer in consumers})
    meters.replace(SLOTS, {(consumer.queue, worker): consumer.slots for consumer in consumers})
    polled = {(consumer.queue, worker): consumer.polled_at for consumer in consumers}
    meters.replace(LAST_POLL, {labels: at for labels, at in polled.items() if at is not None})
