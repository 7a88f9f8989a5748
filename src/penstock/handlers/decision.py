"""What becomes of a delivery: one pure function from what the call came to.

`Reject` and messages nobody can read are given up at once; everything else is tried again after a wait, until the
attempts are used up. A message for a newer worker waits for one, and that costs it no attempt.
"""

import math

from penstock.errors import InvalidMessage, NewerMessage, Reject, Retry
from penstock.handlers.declaration import RetryPolicy
from penstock.handlers.durations import seconds_of
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import FailureDetails, fingerprint
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

NEWER_POLL_SECONDS = 30.0  # between two looks at a message of a newer schema, spread by up to half


class Exhausted(Exception):
    """All attempts were begun, and none of them came to an end: the work kills its worker, or hangs it."""


def exhausted(delivery: Delivery, policy: RetryPolicy) -> Exhausted | None:
    """Why a delivery is not worked on any more, before its function is called; None where it has an attempt left."""
    if delivery.attempt <= policy.max_attempts:
        return None
    last = delivery.previous
    how = "" if last is None else f"; the last one ended as {last.end.value}, on {last.worker}"
    return Exhausted(f"{policy.max_attempts} attempts were begun and none came to an end{how}")


class TimedOut(Exception):
    """The handler's timeout was over."""


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
    """The settlement for what was raised (``failure`` is the same in words); None: the function returned.

    ``excused_seconds``: it is not the message's failure but an outage's, so it comes again after that time, however
    many attempts it had: some brokers cannot give one back.
    """
    if raised is None:
        return Ack()
    if isinstance(raised, Reject):
        return DeadLetter(reason=str(raised) or "rejected", poison=True, handler=handler)
    if isinstance(raised, InvalidMessage | Exhausted):
        return DeadLetter(reason=str(raised), poison=isinstance(raised, InvalidMessage), handler=handler)
    words = failure.summary if failure is not None else type(raised).__name__
    if excused_seconds is not None:
        return Release(delay_seconds=excused_seconds, refund=True, reason=words)
    if delivery.attempt >= policy.max_attempts:
        times = "once, with" if delivery.attempt == 1 else f"{delivery.attempt} times, the last time with"
        reason = f"failed {times} {words}"
        if failure is None:
            return DeadLetter(reason=reason, exception=words, handler=handler)
        return DeadLetter(
            reason=reason,
            exception=words,
            traceback=failure.traceback,
            fingerprint=fingerprint(handler, failure.error_type, raised, failure.traceback),
            handler=handler,
        )
    asked_seconds = delay_asked(raised)
    if asked_seconds is not None:
        return Release(delay_seconds=asked_seconds, reason=words)
    delay_seconds = backoff_seconds(
        attempt=delivery.attempt, base_seconds=policy.base_seconds, cap_seconds=policy.cap_seconds, random=random
    )
    return Release(delay_seconds=delay_seconds, reason=words)


def delay_asked(raised: BaseException) -> float | None:
    """The wait that a `Retry` asks for; None where it asks for none, or for one that makes no sense."""
    if not isinstance(raised, Retry):
        return None
    given = getattr(raised, "delay_seconds", None)  # a class of the user's may have forgotten it
    if isinstance(given, int | float):
        return None if math.isnan(given) else max(given, 0.0)
    try:
        return None if given is None else seconds_of("delay_seconds", given)
    except Exception:  # the text of the dead letter is the exception's; this must not hide it
        return None


def decide_newer(
    raised: NewerMessage, *, delivery: Delivery, policy: RetryPolicy, now: float, random: Random
) -> Settlement:
    """A message for a newer worker: back, uncharged, until it has waited long enough for one."""
    waited_seconds = now - delivery.message.enqueued_at
    if waited_seconds >= policy.newer_wait_seconds:
        return DeadLetter(reason=f"{raised}; no newer worker took it within {policy.newer_wait_seconds:g} s")
    delay_seconds = min(NEWER_POLL_SECONDS, policy.newer_wait_seconds) * (0.5 + 0.5 * random())
    return Release(delay_seconds=delay_seconds, refund=True, reason=str(raised))
