"""How queues are called on SQS: what follows from a name, a URL or an ARN alone."""

from penstock.brokers.sqs.limits import BATCH_MAX
from penstock.messaging.broker import DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX, conventional_dead_letter_queue

FIFO = ".fifo"


def messages_a_call(queue: str) -> int:
    """How many one receive may bring. Of a FIFO queue one: SQS hands several of a group over together, and a worker
    begins all that it has. So the next of a group comes when the one before is settled, and none overtakes a retry.
    """
    return 1 if valid_name(queue).endswith(FIFO) else BATCH_MAX


def base_name(url: str) -> str:
    return url.rpartition("/")[2]


def dead_letter_name(name: str) -> str:
    return valid_name(conventional_dead_letter_queue(name))


def source_name(queue: str) -> str | None:
    """Whose dead letters lie there, if the name says so: of the first tier a queue's, of the second the first's."""
    for suffix, of in ((DEAD_LETTER_SUFFIX, ""), (SECOND_TIER_SUFFIX, DEAD_LETTER_SUFFIX)):
        if queue.endswith(suffix) and queue != suffix:
            return queue.removesuffix(suffix) + of
    return None


def arn_name(arn: str) -> str:
    return arn.rpartition(":")[2]


def valid_name(name: str) -> str:
    """What ends in .fifo-dlq or .fifo-dead to everybody else has to end in -dlq.fifo or -dead.fifo on SQS."""
    for suffix in (DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX):
        if name.endswith(f"{FIFO}{suffix}"):
            return name.removesuffix(f"{FIFO}{suffix}") + suffix + FIFO
    return name
