"""Lists of objects, page by page, on every database."""

from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import event
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome
from tests.conformance.ledger.test_ledger_version_plans import analyse, plans_of

from penstock.ledger.object_lists import AttemptPosition, ObjectFilter, ObjectInList, TimePosition
from penstock.ledger.records import AttemptFailure, ObjectState

EVERY = frozenset(ObjectState)
DEAD = frozenset({ObjectState.DEAD})
WAITING = frozenset({ObjectState.UNPROCESSED})
OTHER = "file:///lake/orders"


def filter_of(states: frozenset[ObjectState] = EVERY, text: str | None = None, *pipelines: str) -> ObjectFilter:
    return ObjectFilter(pipelines=pipelines or (PIPELINE,), states=states, uri_contains=text)


def names(found: Sequence[ObjectInList]) -> list[str]:
    return [one.row.uri.removeprefix("s3://landing//landing/") for one in found]


@pytest.fixture
def filled(harness: LedgerHarness) -> LedgerHarness:
    """Return a ledger with three batches of two objects, two failed objects, and two that wait."""
    for pair in ("ab", "cd", "ef"):
        harness.process(*pair)
    for name, failure in (("bad", AttemptFailure.DEAD), ("worse", AttemptFailure.DEAD), ("wait", AttemptFailure.RETRY)):
        claim = harness.claim(candidates(name))
        harness.ledger.commit(outcome(claim, failed={name: failure}))
    claim = harness.claim(candidates("later"))
    harness.ledger.commit(outcome(claim, failed={"later": AttemptFailure.RETRY}))
    return harness


def by_attempt_pages(harness: LedgerHarness, wanted: ObjectFilter, *, limit: int, read: int) -> Iterator[list[str]]:
    after: AttemptPosition | None = None
    for _ in range(20):
        part = harness.ledger.lists.by_attempt(wanted, limit=limit, read=read, after=after)
        yield names(part.objects)
        after = part.after
        if after is None:
            return
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize(("limit", "read"), [(100, 100), (100, 1), (1, 100), (1, 1), (2, 3), (3, 2)])
def test_all_objects_are_read_once_the_newest_attempts_first(filled: LedgerHarness, limit: int, read: int) -> None:
    pages = [*by_attempt_pages(filled, filter_of(EVERY - WAITING), limit=limit, read=read)]
    found = [name for page in pages for name in page]
    assert [{*found[:1]}, {*found[1:2]}] == [{"worse"}, {"bad"}]
    assert [{*found[start : start + 2]} for start in (2, 4, 6)] == [{"e", "f"}, {"c", "d"}, {"a", "b"}]
    assert max(map(len, pages)) <= limit


def test_reading_by_attempt_counts_the_objects_read_and_not_those_found(filled: LedgerHarness) -> None:
    lists, wanted = filled.ledger.lists, filter_of(frozenset({ObjectState.PROCESSED}), "LANDING/A")
    first = lists.by_attempt(wanted, limit=10, read=3, after=None)
    assert (names(first.objects), first.read) == ([], 4), "two failed ones, and an attempt with two"
    assert first.after is not None
    rest = lists.by_attempt(wanted, limit=10, read=100, after=first.after)
    assert (names(rest.objects), rest.read, rest.after) == (["a"], 4, None)


def test_pages_that_end_inside_an_attempt_count_each_object_once(filled: LedgerHarness) -> None:
    lists, after, read = filled.ledger.lists, None, 0
    while True:
        part = lists.by_attempt(filter_of(EVERY - WAITING), limit=1, read=100, after=after)
        read, after = read + part.read, part.after
        if after is None:
            break
    assert read == 8


def test_objects_are_sorted_by_time_in_pages(filled: LedgerHarness) -> None:
    lists, wanted = filled.ledger.lists, filter_of(DEAD | WAITING)
    whole = lists.by_time(wanted, limit=10)
    assert sorted(names(whole)) == ["bad", "later", "wait", "worse"]
    assert [one.since for one in whole] == sorted((one.since for one in whole), reverse=True)
    paged: list[ObjectInList] = []
    while page := lists.by_time(wanted, limit=1, after=_last(paged)):
        paged += page
    assert names(paged) == names(whole)
    assert names(lists.by_time(filter_of(DEAD, "BAD"), limit=10)) == ["bad"]


def _last(paged: Sequence[ObjectInList]) -> TimePosition | None:
    return TimePosition(since=paged[-1].since, object_id=paged[-1].row.object_id) if paged else None


@pytest.mark.parametrize(("limit", "read"), [(10, 10), (1, 10), (10, 1), (1, 1)])
def test_the_objects_of_one_state_are_read_by_id(filled: LedgerHarness, limit: int, read: int) -> None:
    found: list[ObjectInList] = []
    after, total = None, 0
    for _ in range(10):
        part = filled.ledger.lists.by_id(
            PIPELINE, filter_of(WAITING), ObjectState.UNPROCESSED, limit=limit, read=read, after=after
        )
        found, total, after = [*found, *part.objects], total + part.read, part.after
        if after is None:
            break
    assert [one.row.object_id for one in found] == sorted(one.row.object_id for one in found)
    assert (sorted(names(found)), total) == (["later", "wait"], 2)


def test_a_count_stops_at_its_bound(filled: LedgerHarness) -> None:
    lists = filled.ledger.lists
    assert [lists.count(filter_of(EVERY), up_to=bound) for bound in (3, 100)] == [3, 10]
    assert lists.count(filter_of(DEAD, None, "unheard of"), up_to=10) == 0


def test_only_the_chosen_pipelines_are_listed(filled: LedgerHarness) -> None:
    filled.ledger.ensure_pipeline(OTHER)
    claim = filled.claim(candidates("a"), pipeline=OTHER)
    filled.ledger.commit(outcome(claim, pipeline=OTHER))
    lists = filled.ledger.lists
    (only,) = lists.by_attempt(filter_of(EVERY, None, OTHER), limit=10, read=100, after=None).objects
    assert (only.pipeline, only.attempt_id) == (OTHER, claim.attempt_id)
    both = lists.by_attempt(filter_of(EVERY, "/a", OTHER, PIPELINE), limit=10, read=100, after=None)
    assert [one.pipeline for one in both.objects] == [OTHER, PIPELINE]


def test_the_objects_of_running_attempts_are_counted(filled: LedgerHarness) -> None:
    claim = filled.claim(candidates("y", "x"))
    lists = filled.ledger.lists
    assert lists.count_of_attempts([claim.attempt_id, "none"]) == {claim.attempt_id: 2}
    assert names(lists.of_attempt(claim.attempt_id, limit=1)) == ["x"]


def test_texts_are_taken_literally(harness: LedgerHarness) -> None:
    harness.process("100%_done", "1000_done", "請求書 1")
    lists = harness.ledger.lists
    for text, found in (("%_D", ["100%_done"]), ("書 1", ["請求書 1"]), ("\0", []), ("' OR '1'='1", [])):
        assert names(lists.by_attempt(filter_of(EVERY, text), limit=10, read=100, after=None).objects) == found


CROWD = 3_000
INDEXES = ("ix_objects_attempt", "ix_objects_state")


def test_objects_are_found_by_the_indexes_of_attempts_and_states(harness: LedgerHarness) -> None:
    if (engine := harness.ledger.database.engine).dialect.name == "postgresql":
        # It reads so few rows as a whole, if it may; the question is whether the indexes can be used.
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL enable_seqscan = off"))
    for start in range(0, CROWD, 1_000):
        harness.process(*(f"crowd {number}" for number in range(start, start + 1_000)))
    harness.fail(AttemptFailure.DEAD, candidates("bad")[0], "bad")
    analyse(harness)  # PostgreSQL may have statistics of the first rows alone, in which no object is dead
    lists = harness.ledger.lists
    with plans_of(harness) as plans:
        lists.by_attempt(filter_of(EVERY, "nothing"), limit=10, read=100, after=None)
        lists.by_attempt(filter_of(EVERY, "x"), limit=10, read=100, after=AttemptPosition(attempt_id="attempt-0002"))
        lists.by_id(PIPELINE, filter_of(DEAD, "x"), ObjectState.DEAD, limit=10, read=10, after=b"\0" * 16)
        lists.by_time(filter_of(DEAD, "x"), limit=10)
        lists.count(filter_of(DEAD), up_to=10)
        lists.of_attempt("attempt-0001", limit=10)
        lists.count_of_attempts(["attempt-0001"])
    assert len(plans) >= 7
    for statement, steps in plans.items():
        of_objects = [step for step in steps if "objects" in step]
        assert all(any(index in step for index in INDEXES) for step in of_objects), (statement, steps)
