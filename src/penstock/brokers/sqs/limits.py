"""What SQS takes, by AWS's own documentation, and what this broker can do with it.

How queues are called on SQS: what follows from a name, a URL or an ARN alone.
"""

import math

from penstock.brokers import shared
from penstock.errors import ConfigurationError
from penstock.messaging.broker import (
    DEAD_LETTER_SUFFIX,
    SECOND_TIER_SUFFIX,
    Capabilities,
    conventional_dead_letter_queue,
    is_fifo,
)

BATCH_MAX = 10  # entries of one call, and messages of one receive
MESSAGE_BYTES_MAX = 1024 * 1024  # body and attributes; a batch of messages together has no more
OLD_MESSAGE_BYTES_MAX = 256 * 1024  # of a queue that was made before, or told so
ATTRIBUTES_MAX = 10
DELAY_SECONDS_MAX = 900.0
LEASE_SECONDS_MAX = 43_200.0  # from the receive, however often it is extended
POLL_SECONDS_MAX = 20.0
RECEIVES_MAX = 1_000  # the most that a redrive policy can say
RETENTION_SECONDS_MIN, RETENTION_SECONDS_MAX = 60.0, 14 * 86_400.0
SETTLE_LINGER_SECONDS = 0.1  # so that batches fill: requests are what SQS costs


def capabilities(*, pollers: int) -> Capabilities:
    """Of a broker that makes that many receive calls at once."""
    return Capabilities(
        delay_seconds_max=DELAY_SECONDS_MAX,
        hold_seconds_max=LEASE_SECONDS_MAX,
        lease_seconds_max=LEASE_SECONDS_MAX,
        body_bytes_max=MESSAGE_BYTES_MAX,
        receive_max=BATCH_MAX * pollers,
        fenced=False,
        refunds=False,
        deduplicates=False,
        browsable=False,
        remembers_attempts=False,
        pausable=False,
        system="aws_sqs",
        creates_queues=False,
        ordered=False,
        exact_stats=False,
        explains_deaths=False,
        looks_cost=True,
        settle_linger_seconds=SETTLE_LINGER_SECONDS,
        settle_batch=BATCH_MAX,
    )


def check_lease(seconds: float) -> None:
    """Refuse a lease that SQS does not know."""
    shared.check_seconds("lease_seconds", seconds, LEASE_SECONDS_MAX)


def check_delay(seconds: float, *, queue: str) -> None:
    """Refuse a delay that SQS does not know."""
    if seconds > DELAY_SECONDS_MAX:
        raise ConfigurationError(
            f"queue {queue!r}: a delay of {seconds:g} s is more than the {DELAY_SECONDS_MAX:g} s that SQS can; give a "
            "shorter one, or put the time into the message and let its handler raise Retry until then"
        )
    shared.check_seconds("delay_seconds", seconds, DELAY_SECONDS_MAX)


def check_hold(seconds: float) -> None:
    """Refuse a release that hides a message for longer than SQS ever does."""
    shared.check_seconds("delay_seconds", seconds, LEASE_SECONDS_MAX)


def whole_seconds(seconds: float) -> int:
    """As SQS counts them: never less than was asked for."""
    return math.ceil(seconds)


_FIFO = ".fifo"


def messages_a_call(queue: str) -> int:
    """How many one receive may bring. Of a FIFO queue one: SQS hands several of a group over together, and a worker
    begins all that it has. So the next of a group comes when the one before is settled, and none overtakes a retry.
    """
    return 1 if is_fifo(valid_name(queue)) else BATCH_MAX


def base_name(url: str) -> str:
    return url.rpartition("/")[2]


def dead_letter_name(name: str) -> str:
    return valid_name(conventional_dead_letter_queue(name))


def arn_name(arn: str) -> str:
    return arn.rpartition(":")[2]


def valid_name(name: str) -> str:
    """What ends in .fifo-dlq or .fifo-dead to everybody else has to end in -dlq.fifo or -dead.fifo on SQS."""
    for suffix in (DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX):
        if name.endswith(f"{_FIFO}{suffix}"):
            return name.removesuffix(f"{_FIFO}{suffix}") + suffix + _FIFO
    return name
