"""Works, on every database, when the response to a COMMIT is lost."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.conformance.ledger.desk import HANDLER, LEASE_SECONDS, OVER, Desk
from tests.conformance.ledger.lost import replies_lost

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import WorkBegun, WorkBusy, WorkDone, WorkEnd, WorkState
from penstock.ledger.works import TRIES_MAX

ALWAYS = 1_000

lost = pytest.mark.parametrize(
    ("times", "committed"), [(times, committed) for times in (1, TRIES_MAX - 1) for committed in (True, False)]
)


@lost
def test_a_begin_whose_response_is_lost_is_found_again(desk: Desk, times: int, committed: bool) -> None:
    with replies_lost(desk.ledger.database.engine, times=times, committed=committed):
        assert desk.begin(attempt="first") == WorkBegun(previous=None)
    assert desk.work().attempts == 1
    assert isinstance(desk.begin(), WorkBusy)


@lost
def test_a_takeover_whose_response_is_lost_is_found_again(desk: Desk, times: int, committed: bool) -> None:
    desk.begin(attempt="slow", lease_seconds=OVER)
    with replies_lost(desk.ledger.database.engine, times=times, committed=committed):
        result = desk.begin(attempt="next")
    assert isinstance(result, WorkBegun)
    assert result.previous is not None
    assert result.previous.attempt_id == "slow"
    assert desk.work().attempts == 2


@lost
def test_a_completion_whose_response_is_lost_is_recorded_once(desk: Desk, times: int, committed: bool) -> None:
    desk.begin(attempt="first")
    with replies_lost(desk.ledger.database.engine, times=times, committed=committed):
        assert desk.ledger.finish_work("first", outcome='"ours"')
    result = desk.begin()
    assert isinstance(result, WorkDone)
    assert result.outcome == '"ours"'


@lost
def test_an_end_whose_response_is_lost_counts(desk: Desk, times: int, committed: bool) -> None:
    desk.begin(attempt="first")
    with replies_lost(desk.ledger.database.engine, times=times, committed=committed):
        assert desk.ledger.end_work("first", outcome="failed", reason="as passed")
    result = desk.begin()
    assert isinstance(result, WorkBegun)
    assert result.previous is not None
    assert (result.previous.outcome, result.previous.reason) == (WorkEnd.FAILED, "as passed")


@pytest.mark.parametrize("committed", [True, False])
def test_a_begin_that_gets_responses_again_too_late_releases_the_key(desk: Desk, committed: bool) -> None:
    with (
        replies_lost(desk.ledger.database.engine, times=TRIES_MAX, committed=committed),
        pytest.raises(TemporaryError, match="attempt first: the ledger did not confirm"),
    ):
        desk.begin(attempt="first")
    assert isinstance(desk.begin(attempt="second"), WorkBegun)


def test_a_begin_that_never_gets_a_response_succeeds_when_repeated_with_its_id(desk: Desk) -> None:
    engine = desk.ledger.database.engine
    with replies_lost(engine, times=ALWAYS, committed=False), pytest.raises(TemporaryError):
        desk.begin(attempt="first")
    assert desk.ledger.works() == []
    assert desk.begin(attempt="first") == WorkBegun(previous=None)


@pytest.mark.parametrize(
    "act",
    [
        lambda desk: desk.ledger.finish_work("first", outcome="null"),
        lambda desk: desk.ledger.end_work("first", outcome="given_back", reason=""),
        lambda desk: desk.ledger.extend_work("first", lease_seconds=LEASE_SECONDS),
        lambda desk: desk.ledger.abandon_worker_works("worker-1"),
    ],
    ids=["finish", "end", "extend", "abandon"],
)
def test_a_request_without_a_response_can_be_repeated(desk: Desk, act: Callable[[Desk], bool | int]) -> None:
    desk.begin(attempt="first")
    before = desk.everything()
    engine = desk.ledger.database.engine
    with replies_lost(engine, times=ALWAYS, committed=False), pytest.raises(TemporaryError, match="did not confirm"):
        act(desk)
    assert desk.everything() == before
    assert act(desk)


@pytest.mark.parametrize("take_over", [True, False])
def test_a_work_lost_while_its_completion_waits_for_a_response_is_lost(shared_desk: Desk, take_over: bool) -> None:
    shared_desk.begin(attempt="slow", lease_seconds=OVER)
    other = Ledger.open(shared_desk.url)

    def meanwhile() -> None:
        if take_over:
            Desk(other).begin(attempt="next")
        else:
            other.abandon_worker_works("worker-1")

    engine = shared_desk.ledger.database.engine
    with replies_lost(engine, times=1, committed=False, meanwhile=meanwhile):
        assert not shared_desk.ledger.finish_work("slow", outcome="null")
    other.close()
    assert shared_desk.work().state is (WorkState.OPEN if take_over else WorkState.FREE)


def test_a_repeated_completion_of_the_same_attempt_returns_true(shared_desk: Desk) -> None:
    """The COMMIT that seemed lost takes effect late, from elsewhere: the second check finds it."""
    shared_desk.begin(attempt="first")
    other = Ledger.open(shared_desk.url)
    engine = shared_desk.ledger.database.engine
    with replies_lost(engine, times=1, committed=False, meanwhile=lambda: other.finish_work("first", outcome='"late"')):
        assert shared_desk.ledger.finish_work("first", outcome='"late"')
    other.close()
    assert shared_desk.work().outcome == '"late"'


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
        lambda desk: desk.ledger.finish_work("first", outcome="null"),
        lambda desk: desk.ledger.end_work("first", outcome="failed", reason=""),
    ],
    ids=["finish", "end"],
)
def test_a_takeover_between_read_and_change_is_not_overwritten(desk: Desk, act: Callable[[Desk], bool]) -> None:
    desk.begin(attempt="first")
    before = desk.everything()
    with (
        changed_after_a_lookup(desk.ledger.database.engine, "UPDATE works SET attempt_id = 'next'"),
        pytest.raises(TemporaryError, match="attempt first: its work changed under each"),
    ):
        act(desk)
    assert desk.everything() == before


def test_a_heartbeat_after_a_takeover_extends_nothing(desk: Desk) -> None:
    desk.begin(attempt="first")
    lease_until = desk.work().lease_until
    with changed_after_a_lookup(desk.ledger.database.engine, "UPDATE works SET attempt_id = 'next'"):
        locked = desk.ledger.extend_works(["first"], lease_seconds=2 * LEASE_SECONDS).locked
    assert locked == {"first"}
    assert desk.work().lease_until == lease_until
    assert not desk.ledger.extend_work("first", lease_seconds=2 * LEASE_SECONDS)  # the next check sees the new attempt


def test_work_that_starts_between_check_and_deletion_is_not_forgotten(desk: Desk) -> None:
    desk.begin(attempt="first")
    desk.ledger.end_work("first", outcome="failed", reason="")
    with changed_after_a_lookup(desk.ledger.database.engine, "UPDATE works SET state = 'open', ended_at = NULL"):
        assert desk.ledger.forget_works(older_than_seconds=-1.0, limit=10) == 0
    assert desk.work().state is WorkState.OPEN


def test_work_of_a_dead_worker_taken_over_meanwhile_is_not_abandoned(desk: Desk) -> None:
    desk.begin(attempt="first", worker="dead")
    with changed_after_a_lookup(desk.ledger.database.engine, "UPDATE works SET attempt_id = 'next', worker = 'alive'"):
        assert desk.ledger.abandon_worker_works("dead") == 0
    assert (desk.work().state, desk.work().worker) == (WorkState.OPEN, "alive")


def test_an_error_in_a_transaction_rolls_back_and_the_connection_stays_usable(desk: Desk) -> None:
    desk.begin(attempt="first")
    before = desk.everything()
    missing = (OperationalError, ProgrammingError)
    with pytest.raises(missing), desk.ledger.database.writing() as connection:  # noqa: PT012 - the block is it
        connection.exec_driver_sql("UPDATE works SET attempt_id = 'nobody'")
        connection.exec_driver_sql("SELECT nonsense FROM nowhere")
    assert desk.everything() == before
    row = desk.ledger.work(HANDLER, "k")
    assert row is not None
    assert row.attempt_id == "first"
