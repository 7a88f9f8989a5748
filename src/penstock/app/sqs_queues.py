"""Our queues in SQS, among those of others: whether they are there, and how many dead letters they have.

Nobody but its owner makes a queue there.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.app.sqs_address import aws_of, is_sqs
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.messaging.broker import names_dead_letters
from penstock.messaging.clock import Clock, SystemClock


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


def dead_letters(queues: Iterable[str], settings: Settings) -> int:
    """About how many wait where the dead letters of these queues go. One that several share counts once."""
    if not (names := list(queues)):
        return 0
    from penstock.brokers.sqs.facts import looking
    from penstock.brokers.sqs.faults import QueueMissing

    visible: dict[str, int] = {}
    with looking(aws_of(settings.broker, settings.aws), clock=SystemClock()) as look:
        for name in names:
            with suppress(QueueMissing):
                facts = look.queue(name) if names_dead_letters(name) else look.dead_letters(name)
                visible[facts.arn] = facts.visible
    return sum(visible.values())
