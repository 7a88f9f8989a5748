"""A turn at a broker made of its single calls, for brokers that win nothing by combining them."""

from collections.abc import Sequence

from penstock.messaging.broker import Ask, Broker, SettleFailure, Turn
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Settlement


def one_by_one(
    broker: Broker,
    settlements: Sequence[tuple[Delivery, Settlement]],
    asks: Sequence[Ask],
    *,
    lease_seconds: float,
    wait_seconds: float,
) -> Turn:
    """Settle, then receive from one queue after the other until one has messages. Raises nothing: see `Turn`."""
    failures, settle_error = _settled(broker, settlements)
    for ask in asks:
        try:
            deliveries = broker.receive(
                ask.queue,
                messages_max=ask.messages_max,
                lease_seconds=lease_seconds,
                wait_seconds=wait_seconds if len(asks) == 1 else 0.0,
            )
        except Exception as error:
            return Turn(failures=failures, settle_error=settle_error, receive_error=(ask.queue, error))
        if deliveries:
            return Turn(failures=failures, settle_error=settle_error, deliveries=deliveries)
    return Turn(failures=failures, settle_error=settle_error)


def _settled(
    broker: Broker, settlements: Sequence[tuple[Delivery, Settlement]]
) -> tuple[Sequence[SettleFailure], Exception | None]:
    try:
        return (broker.settle(settlements) if settlements else ()), None
    except Exception as error:
        return (), error
