"""Decide how to settle a delivery from the result of its call. Pure functions.

`Reject` and unreadable messages are dead-lettered at once. Any other failure is retried after a delay, until the
attempts are used up. A message for a newer worker waits for one, which does not count as an attempt.
"""

import math

from penstock.errors import InvalidMessage, NewerMessage, Reject, Retry
from penstock.handlers.declaration import RetryPolicy
from penstock.handlers.durations import seconds_of
from penstock.messaging.backoff import Random, backoff_seconds, upper_half
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import FailureDetails, fingerprint
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.wording import worded

NEWER_POLL_SECONDS = 30.0  # between two tries of a message with a newer schema; jitter shortens it by up to half


class Exhausted(Exception):
    """All attempts began and none ended: the work crashes its worker, or hangs."""


def exhausted(delivery: Delivery, policy: RetryPolicy) -> Exhausted | None:
    """Return the reason not to call the function again; None if the delivery has an attempt left."""
    if delivery.attempt <= policy.max_attempts:
        return None
    last = delivery.previous
    how = "" if last is None else f"; the last one ended as {last.end.value}, on {last.worker}"
    began = worded(policy.max_attempts, "{} attempt began and did not end", "{} attempts began and none ended")
    return Exhausted(f"{began}{how}")


class TimedOut(Exception):
    """The call exceeded the handler's timeout."""


def decide(
    raised: BaseException | None,
    failure: FailureDetails | None,
    *,
    delivery: Delivery,
    policy: RetryPolicy,
    random: Random,
    handler: str,
    excused_seconds: float | None = None,
) -> Settlement:
    """Return the settlement for an exception (``failure`` describes it); None means that the function returned.

    ``excused_seconds``: an outage caused the failure, not the message, so it is released for that time regardless of
    its number of attempts: some brokers cannot release a message without counting one.
    """
    if raised is None:
        return Ack()
    if isinstance(raised, Reject):
        return DeadLetter(reason=str(raised) or "rejected", poison=True, handler=handler)
    if isinstance(raised, InvalidMessage | Exhausted):
        return DeadLetter(reason=str(raised), poison=isinstance(raised, InvalidMessage), handler=handler)
    error_text = failure.summary if failure is not None else type(raised).__name__
    if excused_seconds is not None:
        return Release(delay_seconds=excused_seconds, uncounted=True, reason=error_text)
    if delivery.attempt >= policy.max_attempts:
        times = "once, with" if delivery.attempt == 1 else f"{delivery.attempt} times, the last time with"
        reason = f"failed {times} {error_text}"
        if failure is None:
            return DeadLetter(reason=reason, exception=error_text, handler=handler)
        return DeadLetter(
            reason=reason,
            exception=error_text,
            traceback=failure.traceback,
            fingerprint=fingerprint(handler, failure.error_type, raised, failure.traceback),
            handler=handler,
        )
    wanted_seconds = requested_delay(raised)
    if wanted_seconds is not None:
        return Release(delay_seconds=wanted_seconds, reason=error_text)
    delay_seconds = backoff_seconds(
        attempt=delivery.attempt, base_seconds=policy.base_seconds, cap_seconds=policy.cap_seconds, random=random
    )
    return Release(delay_seconds=delay_seconds, reason=error_text)


def requested_delay(raised: BaseException) -> float | None:
    """Return the delay of a `Retry`; None if it has none or an invalid one."""
    if not isinstance(raised, Retry):
        return None
    given = getattr(raised, "delay_seconds", None)  # a user's subclass may not set it
    if isinstance(given, int | float):
        return None if math.isnan(given) else max(given, 0.0)
    try:
        return None if given is None else seconds_of("delay_seconds", given)
    except Exception:  # keep the original exception: its text is the reason of the dead-lettered message
        return None


def decide_newer(
    raised: NewerMessage, *, delivery: Delivery, policy: RetryPolicy, now: float, random: Random
) -> Settlement:
    """Release a message for a newer worker without counting an attempt; dead-letter it after too long a wait."""
    waited_seconds = now - delivery.message.enqueued_at
    if waited_seconds >= policy.newer_wait_seconds:
        return DeadLetter(reason=f"{raised}; no newer worker received it within {policy.newer_wait_seconds:g} s")
    delay_seconds = upper_half(min(NEWER_POLL_SECONDS, policy.newer_wait_seconds), random)
    return Release(delay_seconds=delay_seconds, uncounted=True, reason=str(raised))
