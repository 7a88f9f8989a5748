"""Pause and resume a queue, with an entry in the audit log."""

from contextlib import closing, suppress
from dataclasses import dataclass

from penstock.app.backends import open_ledger
from penstock.app.queues import opened
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger import Ledger
from penstock.messaging.broker import Broker, listed_name
from penstock.operations.dead_letters.selection import current_user

PAUSE, RESUME = "pause", "resume"  # the actions in the audit log


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseResult:
    """The result of a pause or its end.

    ``known``: the queue had a message before; if not, its name may be mistyped. ``unrecorded`` says why the audit log
    has no entry; None if it has one.
    """

    known: bool
    unrecorded: str | None


def set_paused(settings: Settings, queue: str, *, paused: bool, who: str | None = None) -> PauseResult:
    """Pause or resume a queue. ``who`` acts; None: the user of this process.

    A pause is a brake, so it works without the ledger: then it is not recorded. Raises as `opened`, `Broker.pause` and
    `Broker.resume` do.
    """
    with opened(settings, make=paused) as broker:
        known = not broker.capabilities.pausable or listed_name(queue) in broker.queue_names()
        try:
            ledger = open_ledger(settings)
        except (TemporaryError, ConfigurationError) as error:
            _apply(broker, queue, paused=paused)
            return PauseResult(known=known, unrecorded=str(error))
        with closing(ledger):
            unrecorded = _recorded(ledger, broker, queue, paused=paused, who=who or current_user())
    return PauseResult(known=known, unrecorded=unrecorded)


def _recorded(ledger: Ledger, broker: Broker, queue: str, *, paused: bool, who: str) -> str | None:
    """Pause or resume; return why that is not recorded, or None."""
    try:
        entry = ledger.audits.begin(PAUSE if paused else RESUME, queue=queue, who=who, details={})
    except TemporaryError as error:
        _apply(broker, queue, paused=paused)
        return str(error)
    try:
        _apply(broker, queue, paused=paused)
    except BaseException:
        with suppress(PenstockError):  # report the original error, not the failed record
            ledger.audits.end(entry, messages=0, outcome="failed")
        raise
    with suppress(TemporaryError):  # it is done; the entry stays without an outcome
        ledger.audits.end(entry, messages=0, outcome="done")
    return None


def _apply(broker: Broker, queue: str, *, paused: bool) -> None:
    if paused:  # a broker without pauses raises an error that says so
        broker.pause(queue)
    else:
        broker.resume(queue)
