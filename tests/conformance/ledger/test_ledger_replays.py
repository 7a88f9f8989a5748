"""The record of replays, on every database: the first word counts, a mark stays, and who asks at once agrees."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.conformance.ledger.crowd import CLAIMERS, DEADLINE_SECONDS, spawning, together
from tests.conformance.ledger.desk import Desk
from tests.conformance.ledger.lost import replies_lost

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.messaging.replay import Replay, replay_id_of

LETTERS = 40


def replay(number: int, *, due_at: float | None = None) -> Replay:
    dead_letter_id = f"letter-{number}"
    return Replay(
        replay_id=replay_id_of("q-dlq", dead_letter_id),
        dead_letter_queue="q-dlq",
        dead_letter_id=dead_letter_id,
        queue="q",
        count=number % 3 + 1,
        due_at=1_700_000_000.123456 + number if due_at is None else due_at,
    )


def replays(*numbers: int) -> list[Replay]:
    return [replay(number) for number in numbers or range(LETTERS)]


def ids(of: list[Replay]) -> list[str]:
    return [one.replay_id for one in of]


def test_an_intent_is_recorded_unchanged(desk: Desk) -> None:
    some = replays(1, 2, 3)
    assert desk.ledger.replays.open(some) == {one.replay_id: one for one in some}


def test_the_first_record_about_a_dead_letter_counts(desk: Desk) -> None:
    first = replay(1, due_at=1_000.5)
    desk.ledger.replays.open([first])
    second = replace(first, due_at=9_000.0, count=7, queue="elsewhere")
    assert desk.ledger.replays.open([second, replay(2)]) == {first.replay_id: first, replay(2).replay_id: replay(2)}


def test_a_mark_stays_and_covers_its_own_dead_letters_only(desk: Desk) -> None:
    some = replays(1, 2, 3)
    desk.ledger.replays.open(some)
    desk.ledger.replays.mark_sent(ids(some[:2]))
    assert [desk.ledger.replays.open(some)[id].sent for id in ids(some)] == [True, True, False]
    desk.ledger.replays.mark_sent(ids(some))
    assert all(one.sent for one in desk.ledger.replays.open(some).values())


def test_a_second_mark_changes_nothing(desk: Desk) -> None:
    some = replays(1, 2)
    desk.ledger.replays.open(some)
    desk.ledger.replays.mark_sent(ids(some))
    before = desk.everything()
    desk.ledger.replays.mark_sent(ids(some))
    assert desk.everything() == before


def test_what_was_never_opened_is_not_marked(desk: Desk) -> None:
    before = desk.everything()
    desk.ledger.replays.mark_sent(ids(replays(1)))
    assert desk.everything() == before


def test_a_long_name_of_a_queue_and_an_id_of_any_broker_are_kept(desk: Desk) -> None:
    odd = replace(
        replay(1), dead_letter_queue="q" * 500 + "-dlq", dead_letter_id="1700000000000-0 日本語 😀", queue="Ä" * 300
    )
    assert desk.ledger.replays.open([odd]) == {odd.replay_id: odd}


def test_old_ones_are_forgotten_oldest_first_a_number_at_a_time(desk: Desk) -> None:
    everybody = replays(*range(7))
    for one in everybody:
        desk.ledger.replays.open([one])
    forget = desk.ledger.replays.forget
    assert forget(older_than_seconds=3_600.0, limit=100) == 0
    assert forget(older_than_seconds=-3_600.0, limit=3) == 3
    left = {row[0] for row in desk.everything()["replays"]}
    assert left == set(ids(everybody[3:]))
    assert forget(older_than_seconds=-3_600.0, limit=100) == 4
    assert forget(older_than_seconds=-3_600.0, limit=100) == 0


def test_what_is_not_due_yet_is_not_forgotten_however_long_ago_it_was_intended(desk: Desk) -> None:
    """Replayers of one ledger may serve tiers of different retentions: their letter would wait anew, and again."""
    waits = replace(replay(1), due_at=time.time() + 86_400.0)
    desk.ledger.replays.open([waits, replay(2)])
    assert desk.ledger.replays.forget(older_than_seconds=-3_600.0, limit=100) == 1
    assert desk.ledger.replays.open([replay(1)]) == {waits.replay_id: waits}


# Many at once


def test_threads_that_open_the_same_dead_letters_at_once_agree(shared_desk: Desk) -> None:
    def open_all(number: int) -> dict[str, Replay]:
        mine = [replace(one, due_at=float(number), count=number + 1) for one in replays()]
        return dict(shared_desk.ledger.replays.open(mine[:: 1 if number % 2 else -1]))

    first, *others = together(open_all)
    assert len(first) == LETTERS
    assert all(answer == first for answer in others)
    for one in first.values():
        assert one.due_at == one.count - 1, "the whole first word, not parts of two"


def test_threads_that_open_and_mark_overlapping_dead_letters_lose_no_mark(shared_desk: Desk) -> None:
    share = LETTERS // CLAIMERS

    def work(number: int) -> None:
        wanted = [replay((number * share + n) % LETTERS) for n in range(3 * share)]
        for one in shared_desk.ledger.replays.open(wanted).values():
            assert one.dead_letter_queue == "q-dlq"
        shared_desk.ledger.replays.mark_sent(ids(wanted)[:: 1 if number % 2 else -1])

    together(work)
    assert all(one.sent for one in shared_desk.ledger.replays.open(replays()).values())


def open_and_mark(url: str, numbers: list[int]) -> None:
    ledger = Ledger.open(url)
    for number in numbers:
        (one,) = ledger.replays.open([replay(number, due_at=float(numbers[0]))]).values()
        ledger.replays.mark_sent([one.replay_id])
    ledger.close()


def test_processes_at_one_record_agree(shared_url: str) -> None:
    Ledger.open(shared_url).close()
    numbers = list(range(LETTERS))
    children = [
        spawning.Process(target=open_and_mark, args=(shared_url, numbers[n:] + numbers[:n])) for n in (0, 10, 20)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(DEADLINE_SECONDS)
    assert [child.exitcode for child in children] == [0, 0, 0]
    ledger = Ledger.open(shared_url)
    kept = ledger.replays.open(replays()).values()
    assert all(one.sent for one in kept)
    assert {one.due_at for one in kept} <= {0.0, 10.0, 20.0}
    ledger.close()


def test_forgetting_beside_opening_loses_no_intent_of_now(shared_desk: Desk) -> None:
    def work(number: int) -> None:
        if number % 2:
            shared_desk.ledger.replays.forget(older_than_seconds=3_600.0, limit=LETTERS)
        else:
            shared_desk.ledger.replays.open(replays())

    together(work)
    assert len(shared_desk.everything()["replays"]) == LETTERS


# Answers that do not come


ACTS = pytest.mark.parametrize(
    "act",
    [
        lambda desk: desk.ledger.replays.open(replays(1, 2, 3)),
        lambda desk: desk.ledger.replays.mark_sent(ids(replays(1, 2, 3))),
        lambda desk: desk.ledger.replays.forget(older_than_seconds=-3_600.0, limit=10),
    ],
    ids=["open", "sent", "forget"],
)


@ACTS
def test_what_gets_no_answer_and_is_not_there_changes_nothing(desk: Desk, act: Callable[[Desk], object]) -> None:
    desk.ledger.replays.open(replays(1))
    before = desk.everything()
    engine = desk.ledger.database.engine
    with replies_lost(engine, times=1, committed=False), pytest.raises(TemporaryError, match="did not confirm"):
        act(desk)
    assert desk.everything() == before


@pytest.mark.parametrize("committed", [True, False])
def test_an_intent_whose_answer_was_lost_is_asked_for_again(desk: Desk, committed: bool) -> None:
    some = replays(1, 2, 3)
    engine = desk.ledger.database.engine
    with replies_lost(engine, times=1, committed=committed), pytest.raises(TemporaryError, match="did not confirm"):
        desk.ledger.replays.open(some)
    later = [replace(one, due_at=one.due_at + 60) for one in some]
    first = some if committed else later
    assert desk.ledger.replays.open(later) == {one.replay_id: one for one in first}


@pytest.mark.parametrize("committed", [True, False])
def test_a_mark_whose_answer_was_lost_is_made_again(desk: Desk, committed: bool) -> None:
    some = replays(1, 2, 3)
    desk.ledger.replays.open(some)
    engine = desk.ledger.database.engine
    with replies_lost(engine, times=1, committed=committed), pytest.raises(TemporaryError, match="did not confirm"):
        desk.ledger.replays.mark_sent(ids(some))
    assert {one.sent for one in desk.ledger.replays.open(some).values()} == {committed}
    desk.ledger.replays.mark_sent(ids(some))
    assert {one.sent for one in desk.ledger.replays.open(some).values()} == {True}


# The audit beside it


def test_started_and_ended_actions_are_reported(desk: Desk) -> None:
    details = {"filter": "error ~ 'timeout' 😀", "rate": 10.5, "ids": ["1", "2"]}
    entry = desk.ledger.audits.begin("replay", queue="q-dlq", who="ana@host", details=details)
    (begun,) = desk.ledger.audits.latest(limit=10)
    assert (begun.id, begun.details, begun.outcome, begun.ended_at) == (entry, details, None, None)
    desk.ledger.audits.end(entry, messages=12, outcome="done")
    desk.ledger.audits.end(entry, messages=99, outcome="failed")
    (ended,) = desk.ledger.audits.latest(limit=10)
    assert (ended.messages, ended.outcome) == (12, "done")
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.began_at == begun.began_at


def test_what_is_too_long_to_be_kept_is_reported_by_its_beginning(desk: Desk) -> None:
    asked = [f"s3://landing/{number}/{'😀' * 300}" for number in range(1_000)]
    desk.ledger.audits.begin("retry", queue="q", who="ana@host", details={"objects": asked})
    (row,) = desk.ledger.audits.latest(limit=1)
    *kept, more = row.details["objects"]
    assert kept == asked[: len(kept)]
    assert more == f"and {1_000 - len(kept):,} more"


def test_entries_of_many_at_once_are_all_there(shared_desk: Desk) -> None:
    audits = shared_desk.ledger.audits

    def work(number: int) -> str:
        entry = audits.begin("purge", queue="q-dlq", who=f"person {number}", details={})
        audits.end(entry, messages=number, outcome="done")
        return entry

    entries = together(work)
    rows = audits.latest(limit=100)
    assert sorted(row.id for row in rows) == sorted(entries)
    assert {(row.who, row.messages, row.outcome) for row in rows} == {
        (f"person {number}", number, "done") for number in range(CLAIMERS)
    }
    assert [row.id for row in rows] == sorted(entries, reverse=True)


@pytest.mark.parametrize("committed", [True, False])
def test_a_beginning_whose_answer_was_lost_is_at_worst_an_entry_without_an_end(desk: Desk, committed: bool) -> None:
    engine = desk.ledger.database.engine
    with replies_lost(engine, times=1, committed=committed), pytest.raises(TemporaryError, match="did not confirm"):
        desk.ledger.audits.begin("purge", queue="q-dlq", who="ana", details={})
    assert [row.outcome for row in desk.ledger.audits.latest(limit=10)] == ([None] if committed else [])
