"""Whether the messages that a reconcile sent have left their queue: what they announced was attended to then."""

from penstock.messaging.broker import Broker


def has_settled(broker: Broker, queue: str, *, seconds: float) -> bool:
    """Return True if no message is left in the queue that was there ``seconds`` ago. In doubt, False."""
    stats = broker.stats(queue)
    if not stats.messages:
        return True
    return stats.oldest_message_age_seconds is not None and stats.oldest_message_age_seconds < seconds
