"""The quotas of SQS by AWS's documentation, and the conversion of queue names, URLs and ARNs."""

import math

from penstock.brokers import shared
from penstock.brokers.capabilities import SQS, SQS_BATCH_MAX
from penstock.errors import ConfigurationError
from penstock.messaging.broker import (
    DEAD_LETTER_SUFFIX,
    FINAL_DLQ_SUFFIX,
    conventional_dead_letter_queue,
    is_fifo,
)

BATCH_MAX = SQS_BATCH_MAX  # entries per call, and messages per receive
MESSAGE_BYTES_MAX = SQS.body_bytes_max  # body and attributes; also the limit of a whole batch
OLD_MESSAGE_BYTES_MAX = 256 * 1024  # of older queues, and of those configured so
ATTRIBUTES_MAX = 10
DELAY_SECONDS_MAX = SQS.delay_seconds_max
LEASE_SECONDS_MAX = SQS.lease_seconds_max
POLL_SECONDS_MAX = 20.0
RECEIVES_MAX = 1_000  # the largest count that a redrive policy allows
RETENTION_SECONDS_MIN, RETENTION_SECONDS_MAX = 60.0, 14 * 86_400.0


def check_lease(seconds: float) -> None:
    """Raise ConfigurationError if SQS does not support the lease."""
    shared.check_seconds("lease_seconds", seconds, LEASE_SECONDS_MAX)


def check_delay(seconds: float, *, queue: str) -> None:
    """Raise ConfigurationError if SQS does not support the delay."""
    if seconds > DELAY_SECONDS_MAX:
        raise ConfigurationError(
            f"queue {queue!r}: a delay of {seconds:g} s is more than the {DELAY_SECONDS_MAX:g} s that SQS can; give a "
            "shorter one, or put the time into the message and let its handler raise Retry until then"
        )
    shared.check_seconds("delay_seconds", seconds, DELAY_SECONDS_MAX)


def check_release(seconds: float) -> None:
    """Raise ConfigurationError if the release would hide its message for longer than SQS allows."""
    shared.check_seconds("delay_seconds", seconds, LEASE_SECONDS_MAX)


def whole_seconds(seconds: float) -> int:
    """Return the duration in SQS's unit, rounded up."""
    return math.ceil(seconds)


_FIFO = ".fifo"


def messages_a_call(queue: str) -> int:
    """Return how many messages one receive may return: one from a FIFO queue, else `BATCH_MAX`.

    From a FIFO queue SQS returns several messages of a group together, and a worker starts all messages it has.
    Received singly, the next message of a group arrives after the one before is settled, so none overtakes a retry.
    """
    return 1 if is_fifo(valid_name(queue)) else BATCH_MAX


def base_name(url: str) -> str:
    return url.rpartition("/")[2]


def dead_letter_name(name: str) -> str:
    return valid_name(conventional_dead_letter_queue(name))


def arn_name(arn: str) -> str:
    return arn.rpartition(":")[2]


def valid_name(name: str) -> str:
    """Return the name in SQS's form, which requires .fifo at the end: .fifo-dlq becomes -dlq.fifo, .fifo-dead
    -dead.fifo.
    """
    for suffix in (DEAD_LETTER_SUFFIX, FINAL_DLQ_SUFFIX):
        if name.endswith(f"{_FIFO}{suffix}"):
            return name.removesuffix(f"{_FIFO}{suffix}") + suffix + _FIFO
    return name
