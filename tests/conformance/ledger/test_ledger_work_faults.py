"""Works, on every database, when the response to a COMMIT is lost."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.conformance.ledger.ledger_harness import HANDLER, LEASE_SECONDS, OVER, LedgerHarness
from tests.conformance.ledger.lost_responses import responses_lost

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import WorkBegun, WorkBusy, WorkDone, WorkEnd, WorkState
from penstock.ledger.works import TRIES_MAX

ALWAYS = 1_000

lost = pytest.mark.parametrize(
    ("times", "committed"), [(times, committed) for times in (1, TRIES_MAX - 1) for committed in (True, False)]
)


@lost
def test_a_begin_whose_response_is_lost_is_found_again(harness: LedgerHarness, times: int, committed: bool) -> None:
    with responses_lost(harness.ledger.database.engine, times=times, committed=committed):
        assert harness.begin(attempt="first") == WorkBegun(previous=None)
    assert harness.work().attempts == 1
    assert isinstance(harness.begin(), WorkBusy)


@lost
def test_a_takeover_whose_response_is_lost_is_found_again(harness: LedgerHarness, times: int, committed: bool) -> None:
    harness.begin(attempt="slow", lease_seconds=OVER)
    with responses_lost(harness.ledger.database.engine, times=times, committed=committed):
        result = harness.begin(attempt="next")
    assert isinstance(result, WorkBegun)
    assert result.previous is not None
    assert result.previous.attempt_id == "slow"
    assert harness.work().attempts == 2


@lost
def test_a_completion_whose_response_is_lost_is_recorded_once(
    harness: LedgerHarness, times: int, committed: bool
) -> None:
    harness.begin(attempt="first")
    with responses_lost(harness.ledger.database.engine, times=times, committed=committed):
        assert harness.ledger.finish_work("first", outcome='"ours"')
    result = harness.begin()
    assert isinstance(result, WorkDone)
    assert result.outcome == '"ours"'


@lost
def test_an_end_whose_response_is_lost_counts(harness: LedgerHarness, times: int, committed: bool) -> None:
    harness.begin(attempt="first")
    with responses_lost(harness.ledger.database.engine, times=times, committed=committed):
        assert harness.ledger.end_work("first", outcome="failed", reason="as passed")
    result = harness.begin()
    assert isinstance(result, WorkBegun)
    assert result.previous is not None
    assert (result.previous.outcome, result.previous.reason) == (WorkEnd.FAILED, "as passed")


@pytest.mark.parametrize("committed", [True, False])
def test_a_begin_that_gets_responses_again_too_late_releases_the_key(harness: LedgerHarness, committed: bool) -> None:
    with (
        responses_lost(harness.ledger.database.engine, times=TRIES_MAX, committed=committed),
        pytest.raises(TemporaryError, match="attempt first: the ledger did not confirm"),
    ):
        harness.begin(attempt="first")
    assert isinstance(harness.begin(attempt="second"), WorkBegun)


def test_a_begin_that_never_gets_a_response_succeeds_when_repeated_with_its_id(harness: LedgerHarness) -> None:
    engine = harness.ledger.database.engine
    with responses_lost(engine, times=ALWAYS, committed=False), pytest.raises(TemporaryError):
        harness.begin(attempt="first")
    assert harness.ledger.works() == []
    assert harness.begin(attempt="first") == WorkBegun(previous=None)


@pytest.mark.parametrize(
    "act",
    [
        lambda harness: harness.ledger.finish_work("first", outcome="null"),
        lambda harness: harness.ledger.end_work("first", outcome="given_back", reason=""),
        lambda harness: harness.ledger.extend_work("first", lease_seconds=LEASE_SECONDS),
        lambda harness: harness.ledger.abandon_worker_works("worker-1"),
    ],
    ids=["finish", "end", "extend", "abandon"],
)
def test_a_request_without_a_response_can_be_repeated(
    harness: LedgerHarness, act: Callable[[LedgerHarness], bool | int]
) -> None:
    harness.begin(attempt="first")
    before = harness.everything()
    engine = harness.ledger.database.engine
    with responses_lost(engine, times=ALWAYS, committed=False), pytest.raises(TemporaryError, match="did not confirm"):
        act(harness)
    assert harness.everything() == before
    assert act(harness)


@pytest.mark.parametrize("take_over", [True, False])
def test_a_work_lost_while_its_completion_waits_for_a_response_is_lost(
    shared_harness: LedgerHarness, take_over: bool
) -> None:
    shared_harness.begin(attempt="slow", lease_seconds=OVER)
    other = Ledger.open(shared_harness.url)

    def meanwhile() -> None:
        if take_over:
            LedgerHarness(other).begin(attempt="next")
        else:
            other.abandon_worker_works("worker-1")

    engine = shared_harness.ledger.database.engine
    with responses_lost(engine, times=1, committed=False, meanwhile=meanwhile):
        assert not shared_harness.ledger.finish_work("slow", outcome="null")
    other.close()
    assert shared_harness.work().state is (WorkState.OPEN if take_over else WorkState.FREE)


def test_a_repeated_completion_of_the_same_attempt_returns_true(shared_harness: LedgerHarness) -> None:
    """The COMMIT that seemed lost takes effect late, from elsewhere: the second check finds it."""
    shared_harness.begin(attempt="first")
    other = Ledger.open(shared_harness.url)
    engine = shared_harness.ledger.database.engine
    with responses_lost(
        engine, times=1, committed=False, meanwhile=lambda: other.finish_work("first", outcome='"late"')
    ):
        assert shared_harness.ledger.finish_work("first", outcome='"late"')
    other.close()
    assert shared_harness.work().outcome == '"late"'


# A change between a check and the change that follows from it, on databases that allow both at once


@contextlib.contextmanager
def changed_after_a_lookup(engine: Engine, change: str) -> Iterator[None]:
    """Run this statement after each lookup of works, before the next statement."""

    def listen(connection: Connection, _1: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT works.work_id"):
            connection.exec_driver_sql(change)

    event.listen(engine, "after_cursor_execute", listen)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", listen)


@pytest.mark.parametrize(
    "act",
    [
        lambda harness: harness.ledger.finish_work("first", outcome="null"),
        lambda harness: harness.ledger.end_work("first", outcome="failed", reason=""),
    ],
    ids=["finish", "end"],
)
def test_a_takeover_between_read_and_change_is_not_overwritten(
    harness: LedgerHarness, act: Callable[[LedgerHarness], bool]
) -> None:
    harness.begin(attempt="first")
    before = harness.everything()
    with (
        changed_after_a_lookup(harness.ledger.database.engine, "UPDATE works SET attempt_id = 'next'"),
        pytest.raises(TemporaryError, match="attempt first: its work changed during each"),
    ):
        act(harness)
    assert harness.everything() == before


def test_a_heartbeat_after_a_takeover_extends_nothing(harness: LedgerHarness) -> None:
    harness.begin(attempt="first")
    lease_until = harness.work().lease_until
    with changed_after_a_lookup(harness.ledger.database.engine, "UPDATE works SET attempt_id = 'next'"):
        locked = harness.ledger.extend_works(["first"], lease_seconds=2 * LEASE_SECONDS).locked
    assert locked == {"first"}
    assert harness.work().lease_until == lease_until
    assert not harness.ledger.extend_work(
        "first", lease_seconds=2 * LEASE_SECONDS
    )  # the next check sees the new attempt


def test_work_that_starts_between_check_and_deletion_is_not_forgotten(harness: LedgerHarness) -> None:
    harness.begin(attempt="first")
    harness.ledger.end_work("first", outcome="failed", reason="")
    with changed_after_a_lookup(harness.ledger.database.engine, "UPDATE works SET state = 'open', ended_at = NULL"):
        assert harness.ledger.forget_works(older_than_seconds=-1.0, limit=10) == 0
    assert harness.work().state is WorkState.OPEN


def test_work_of_a_dead_worker_taken_over_meanwhile_is_not_abandoned(harness: LedgerHarness) -> None:
    harness.begin(attempt="first", worker="dead")
    with changed_after_a_lookup(
        harness.ledger.database.engine, "UPDATE works SET attempt_id = 'next', worker = 'alive'"
    ):
        assert harness.ledger.abandon_worker_works("dead") == 0
    assert (harness.work().state, harness.work().worker) == (WorkState.OPEN, "alive")


def test_an_error_in_a_transaction_rolls_back_and_the_connection_stays_usable(harness: LedgerHarness) -> None:
    harness.begin(attempt="first")
    before = harness.everything()
    missing = (OperationalError, ProgrammingError)
    with pytest.raises(missing), harness.ledger.database.writing() as connection:  # noqa: PT012 - the block is it
        connection.exec_driver_sql("UPDATE works SET attempt_id = 'nobody'")
        connection.exec_driver_sql("SELECT nonsense FROM nowhere")
    assert harness.everything() == before
    row = harness.ledger.work(HANDLER, "k")
    assert row is not None
    assert row.attempt_id == "first"
