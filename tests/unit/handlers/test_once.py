"""Claims of an idempotent handler in a real ledger, also during a short outage of the ledger."""

from dataclasses import replace

import pytest

from penstock.errors import TemporaryError
from penstock.handlers import once
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.handlers.once import LedgerKeys
from penstock.ledger import Ledger
from penstock.messaging.delivery import AttemptEnd


class FlakyLedger(Ledger):
    """A ledger that is unavailable for the next `failures` calls of `finish_work`."""

    failures = 0

    def finish_work(self, attempt_id: str, *, outcome: str) -> bool:
        if self.failures:
            self.failures -= 1
            raise TemporaryError("the database is unavailable")
        return super().finish_work(attempt_id, outcome=outcome)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> FlakyLedger:
    monkeypatch.setattr(once, "FINISH_WAIT_SECONDS", 0.001)
    return FlakyLedger.open("sqlite://")


def keys(ledger: Ledger) -> LedgerKeys:
    return LedgerKeys(ledger=ledger, handler="pay", worker="w", lease_seconds=60, retention_seconds=60)


def test_a_failed_record_of_a_completion_is_retried(ledger: FlakyLedger) -> None:
    begun = keys(ledger).begin("order-1")
    assert isinstance(begun, KeyBegun)
    ledger.failures = once.FINISH_TRIES - 1
    assert begun.claim.finish('"paid"')
    assert keys(ledger).begin("order-1") == KeyDone(outcome='"paid"')


def test_a_longer_outage_of_the_ledger_raises(ledger: FlakyLedger) -> None:
    begun = keys(ledger).begin("order-1")
    assert isinstance(begun, KeyBegun)
    ledger.failures = once.FINISH_TRIES
    with pytest.raises(TemporaryError):
        begun.claim.finish('"paid"')


def test_a_failed_attempt_is_passed_to_the_next(ledger: FlakyLedger) -> None:
    first = keys(ledger).begin("order-1")
    assert isinstance(first, KeyBegun)
    assert first.claim.fail("ValueError: no")
    second = keys(ledger).begin("order-1")
    assert isinstance(second, KeyBegun)
    assert second.previous is not None
    assert second.previous.reason == "ValueError: no"
    assert not first.claim.finish('"late"'), "the first attempt is fenced off"


def test_an_attempt_that_a_stop_interrupts_is_passed_to_the_next(ledger: FlakyLedger) -> None:
    first = keys(ledger).begin("order-1")
    assert isinstance(first, KeyBegun)
    assert first.claim.release()
    second = keys(ledger).begin("order-1")
    assert isinstance(second, KeyBegun)
    assert second.previous is not None
    assert (second.previous.end, second.previous.reason) == (AttemptEnd.RELEASED, "released at a stop")


def test_busy_seconds_max_bounds_the_wait_for_a_busy_key(ledger: FlakyLedger) -> None:
    patient, hasty = keys(ledger), replace(keys(ledger), busy_seconds_max=5.0)
    assert isinstance(patient.begin("order-1"), KeyBegun)
    assert isinstance(later := patient.begin("order-1"), KeyBusy)
    assert later.seconds > 50
    assert hasty.begin("order-1") == KeyBusy(seconds=5.0)
