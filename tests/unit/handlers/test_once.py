"""An idempotent handler's claim in a real ledger: what a ledger that is away for a moment costs."""

from dataclasses import replace

import pytest

from penstock.errors import TemporaryError
from penstock.handlers import once
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.handlers.once import LedgerKeys
from penstock.ledger import Ledger


class Flaky(Ledger):
    """Away for so many calls of `finish_work`."""

    away = 0

    def finish_work(self, attempt_id: str, *, outcome: str) -> bool:
        if self.away:
            self.away -= 1
            raise TemporaryError("the database is away")
        return super().finish_work(attempt_id, outcome=outcome)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    monkeypatch.setattr(once, "FINISH_WAIT_SECONDS", 0.001)
    return Flaky.open("sqlite://")


def keys(ledger: Ledger) -> LedgerKeys:
    return LedgerKeys(ledger=ledger, handler="pay", worker="w", lease_seconds=60, retention_seconds=60)


def test_a_completion_that_cannot_be_recorded_at_once_is_recorded_a_moment_later(ledger: Flaky) -> None:
    begun = keys(ledger).begin("order-1")
    assert isinstance(begun, KeyBegun)
    ledger.away = once.FINISH_TRIES - 1
    assert begun.claim.finish('"paid"')
    assert keys(ledger).begin("order-1") == KeyDone(outcome='"paid"')


def test_a_ledger_that_stays_away_is_told(ledger: Flaky) -> None:
    begun = keys(ledger).begin("order-1")
    assert isinstance(begun, KeyBegun)
    ledger.away = once.FINISH_TRIES
    with pytest.raises(TemporaryError):
        begun.claim.finish('"paid"')


def test_a_broken_attempt_is_known_to_the_next(ledger: Flaky) -> None:
    first = keys(ledger).begin("order-1")
    assert isinstance(first, KeyBegun)
    assert first.claim.fail("ValueError: no")
    second = keys(ledger).begin("order-1")
    assert isinstance(second, KeyBegun)
    assert second.previous is not None
    assert second.previous.reason == "ValueError: no"
    assert not first.claim.finish('"late"'), "the zombie is fenced off"


def test_a_key_that_is_busy_is_looked_at_again_long_before_its_lease_ends(ledger: Flaky) -> None:
    patient, hasty = keys(ledger), replace(keys(ledger), busy_seconds_max=5.0)
    assert isinstance(patient.begin("order-1"), KeyBegun)
    assert isinstance(later := patient.begin("order-1"), KeyBusy)
    assert later.seconds > 50
    assert hasty.begin("order-1") == KeyBusy(seconds=5.0)
