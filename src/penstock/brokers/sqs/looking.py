"""What can be seen of a queue: how many messages, as near as SQS knows; and emptying it."""

from penstock.brokers import rules
from penstock.brokers.sqs.api import Api
from penstock.brokers.sqs.faults import QueueMissing, code_of
from penstock.brokers.sqs.queues import Queues
from penstock.errors import TemporaryError
from penstock.messaging.broker import QueueStats

COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
PURGE_SECONDS = 60  # between two purges of one queue, and how long one may take


def read_stats(api: Api, queues: Queues, queue: str) -> QueueStats:
    """As SQS counts, which is eventually right: what was released with a delay is in flight. It tells no ages."""
    try:
        answer = api.on(queues.find(queue), "get_queue_attributes", AttributeNames=list(COUNTS))
    except QueueMissing:
        return rules.NEVER_HEARD_OF
    visible, in_flight, delayed = (int(answer.get("Attributes", {}).get(name, 0)) for name in COUNTS)
    return QueueStats(
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        oldest_visible_message_age_seconds=None,
        oldest_message_age_seconds=None,
    )


def purge(api: Api, queues: Queues, queue: str) -> int:
    """Answers how many there were, as near as SQS counted. What is sent within the next minute may go, too."""
    stats = read_stats(api, queues, queue)
    try:
        api.on(queues.find(queue), "purge_queue")
    except QueueMissing:
        return 0
    except TemporaryError as error:
        if error.__cause__ is None or code_of(error.__cause__) != "PurgeQueueInProgress":
            raise
        raise TemporaryError(
            f"the queue {queue!r} was purged within the last {PURGE_SECONDS} s, and SQS purges once in that time: "
            "purge again when it is over"
        ) from error
    return stats.messages
