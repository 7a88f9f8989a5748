"""Sending notifications for objects that are there."""

from collections.abc import Sequence

from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.announcement import announce
from penstock.objects.reference import ObjectRef

SEND_CHUNK = 1_000  # messages handed to the broker in one call


def announce_all(broker: Broker, queue: str, refs: Sequence[ObjectRef], *, probe: Probe = no_probe) -> None:
    """Send one notification an object. Repeats do no harm."""
    for start in range(0, len(refs), SEND_CHUNK):
        broker.send(queue, [Outgoing(body=announce(ref)) for ref in refs[start : start + SEND_CHUNK]])
        probe(Step.ANNOUNCED)
