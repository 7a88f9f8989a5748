"""The regular reconcile of a worker's pipelines and object handlers, if its settings ask for one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.app.service import Host, Service, needs_objects

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.reconcile_target import Target
    from penstock.worker.shutdown import StopSignal


@contextmanager
def reconciling(app: "App", services: Sequence[Service], host: Host) -> Iterator[None]:
    """Reconcile the pipelines and object handlers among these every so often, until the block ends."""
    every_seconds = host.settings.reconcile_every_seconds
    if every_seconds is None or not any(map(needs_objects, services)):
        yield
        return
    from penstock.app.reconcile import ReconcileRequest, reconcile
    from penstock.app.reconcile_duty import ReconcileDuty
    from penstock.app.reconcile_target import targets_in
    from penstock.app.tools import Tools

    request = ReconcileRequest(older_than_seconds=host.settings.reconcile_older_than_seconds)

    def work(target: "Target", stop: "StopSignal") -> None:
        tools = Tools(stop=stop, clock=host.clock, bus=host.bus, probe=host.probe)
        reconcile(target, request, spark=None if target.alone else host.spark(), tools=tools)

    duty = ReconcileDuty(
        targets_in(app, services),
        work,
        worker=host.worker,
        every_seconds=every_seconds,
        lease_seconds=host.settings.lease_seconds,
        stop=host.stop,
        clock=host.clock,
        random=host.random,
        tell=host.bus.emit,
    )
    duty.start()
    try:
        yield
    finally:
        duty.end()
