"""How queues are called on SQS: what follows from a name, a URL or an ARN alone."""

from penstock.brokers.sqs.limits import BATCH_MAX
from penstock.messaging.broker import DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX, conventional_dead_letter_queue, is_fifo

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
