"""Our queues in SQS, among those of others: whether they are there.

Nobody but its owner makes a queue there.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.app.sqs_address import aws_of, is_sqs
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.messaging.clock import Clock


def check_queues(queues: Iterable[str], settings: Settings, *, clock: Clock, waits: bool = False) -> None:
    """Raise `ConfigurationError` for the first one that is not there: before anything is received from the others.

    Nothing is asked where the broker is another. SQS that is away is no fault to one who ``waits`` for it.
    """
    if not is_sqs(settings.broker):
        return
    from penstock.brokers.sqs.facts import looking

    borne: Sequence[type[Exception]] = (TemporaryError,) if waits else ()
    with suppress(*borne), looking(aws_of(settings.broker, settings.aws), clock=clock) as look:
        for queue in queues:
            look.check_is_there(queue)
