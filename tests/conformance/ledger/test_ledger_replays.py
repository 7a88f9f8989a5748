"""The record of replays, on every database: the first record counts, a mark stays, and concurrent replayers agree."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.conformance.ledger.concurrency import CLAIMERS, DEADLINE_SECONDS, spawning, together
from tests.conformance.ledger.ledger_harness import LedgerHarness
from tests.conformance.ledger.lost_responses import responses_lost

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.messaging.replay import Replay, replay_id_of

DEAD_LETTERS = 40


def replay(number: int, *, due_at: float | None = None) -> Replay:
    dead_letter_id = f"dead-letter-{number}"
    return Replay(
        replay_id=replay_id_of("q-dlq", dead_letter_id),
        dead_letter_queue="q-dlq",
        dead_letter_id=dead_letter_id,
        queue="q",
        count=number % 3 + 1,
        due_at=1_700_000_000.123456 + number if due_at is None else due_at,
    )


def replays(*numbers: int) -> list[Replay]:
    return [replay(number) for number in numbers or range(DEAD_LETTERS)]


def ids(of: list[Replay]) -> list[str]:
    return [one.replay_id for one in of]


def test_an_intent_is_recorded_unchanged(harness: LedgerHarness) -> None:
    intents = replays(1, 2, 3)
    assert harness.ledger.replays.open(intents) == {one.replay_id: one for one in intents}


def test_the_first_intent_of_a_dead_letter_counts(harness: LedgerHarness) -> None:
    first = replay(1, due_at=1_000.5)
    harness.ledger.replays.open([first])
    second = replace(first, due_at=9_000.0, count=7, queue="elsewhere")
    assert harness.ledger.replays.open([second, replay(2)]) == {first.replay_id: first, replay(2).replay_id: replay(2)}


def test_a_sent_mark_stays_and_covers_only_its_own_dead_letters(harness: LedgerHarness) -> None:
    intents = replays(1, 2, 3)
    harness.ledger.replays.open(intents)
    harness.ledger.replays.mark_sent(ids(intents[:2]))
    assert [harness.ledger.replays.open(intents)[id].sent for id in ids(intents)] == [True, True, False]
    harness.ledger.replays.mark_sent(ids(intents))
    assert all(one.sent for one in harness.ledger.replays.open(intents).values())


def test_a_second_mark_changes_nothing(harness: LedgerHarness) -> None:
    intents = replays(1, 2)
    harness.ledger.replays.open(intents)
    harness.ledger.replays.mark_sent(ids(intents))
    before = harness.everything()
    harness.ledger.replays.mark_sent(ids(intents))
    assert harness.everything() == before


def test_an_intent_that_was_never_recorded_cannot_be_marked(harness: LedgerHarness) -> None:
    before = harness.everything()
    harness.ledger.replays.mark_sent(ids(replays(1)))
    assert harness.everything() == before


def test_long_queue_names_and_ids_of_any_broker_are_kept(harness: LedgerHarness) -> None:
    odd = replace(
        replay(1), dead_letter_queue="q" * 500 + "-dlq", dead_letter_id="1700000000000-0 日本語 😀", queue="Ä" * 300
    )
    assert harness.ledger.replays.open([odd]) == {odd.replay_id: odd}


def test_old_intents_are_forgotten_oldest_first_up_to_the_limit(harness: LedgerHarness) -> None:
    all_replays = replays(*range(7))
    for one in all_replays:
        harness.ledger.replays.open([one])
    forget = harness.ledger.replays.forget
    assert forget(older_than_seconds=3_600.0, limit=100) == 0
    assert forget(older_than_seconds=-3_600.0, limit=3) == 3
    left = {row[0] for row in harness.everything()["replays"]}
    assert left == set(ids(all_replays[3:]))
    assert forget(older_than_seconds=-3_600.0, limit=100) == 4
    assert forget(older_than_seconds=-3_600.0, limit=100) == 0


def test_an_intent_that_is_not_due_yet_is_never_forgotten(harness: LedgerHarness) -> None:
    """Replayers of one ledger may serve DLQs of different retentions: without its intent, a message would start its
    wait again, and again.
    """
    waits = replace(replay(1), due_at=time.time() + 86_400.0)
    harness.ledger.replays.open([waits, replay(2)])
    assert harness.ledger.replays.forget(older_than_seconds=-3_600.0, limit=100) == 1
    assert harness.ledger.replays.open([replay(1)]) == {waits.replay_id: waits}


# Concurrency


def test_threads_that_open_the_same_dead_letters_at_once_agree(shared_harness: LedgerHarness) -> None:
    def open_all(number: int) -> dict[str, Replay]:
        own = [replace(one, due_at=float(number), count=number + 1) for one in replays()]
        return dict(shared_harness.ledger.replays.open(own[:: 1 if number % 2 else -1]))

    first, *others = together(open_all)
    assert len(first) == DEAD_LETTERS
    assert all(result == first for result in others)
    for one in first.values():
        assert one.due_at == one.count - 1, "one whole record, not parts of two"


def test_threads_that_open_and_mark_overlapping_dead_letters_lose_no_mark(shared_harness: LedgerHarness) -> None:
    share = DEAD_LETTERS // CLAIMERS

    def work(number: int) -> None:
        wanted = [replay((number * share + n) % DEAD_LETTERS) for n in range(3 * share)]
        for one in shared_harness.ledger.replays.open(wanted).values():
            assert one.dead_letter_queue == "q-dlq"
        shared_harness.ledger.replays.mark_sent(ids(wanted)[:: 1 if number % 2 else -1])

    together(work)
    assert all(one.sent for one in shared_harness.ledger.replays.open(replays()).values())


def open_and_mark(url: str, numbers: list[int]) -> None:
    ledger = Ledger.open(url)
    for number in numbers:
        (one,) = ledger.replays.open([replay(number, due_at=float(numbers[0]))]).values()
        ledger.replays.mark_sent([one.replay_id])
    ledger.close()


def test_processes_that_open_and_mark_the_same_dead_letters_agree(shared_url: str) -> None:
    Ledger.open(shared_url).close()
    numbers = list(range(DEAD_LETTERS))
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


def test_forgetting_while_opening_loses_no_current_intent(shared_harness: LedgerHarness) -> None:
    def work(number: int) -> None:
        if number % 2:
            shared_harness.ledger.replays.forget(older_than_seconds=3_600.0, limit=DEAD_LETTERS)
        else:
            shared_harness.ledger.replays.open(replays())

    together(work)
    assert len(shared_harness.everything()["replays"]) == DEAD_LETTERS


# Lost responses


ACTS = pytest.mark.parametrize(
    "act",
    [
        lambda harness: harness.ledger.replays.open(replays(1, 2, 3)),
        lambda harness: harness.ledger.replays.mark_sent(ids(replays(1, 2, 3))),
        lambda harness: harness.ledger.replays.forget(older_than_seconds=-3_600.0, limit=10),
    ],
    ids=["open", "sent", "forget"],
)


@ACTS
def test_a_transaction_that_was_rolled_back_without_a_response_changes_nothing(
    harness: LedgerHarness, act: Callable[[LedgerHarness], object]
) -> None:
    harness.ledger.replays.open(replays(1))
    before = harness.everything()
    engine = harness.ledger.database.engine
    with responses_lost(engine, times=1, committed=False), pytest.raises(TemporaryError, match="did not confirm"):
        act(harness)
    assert harness.everything() == before


@pytest.mark.parametrize("committed", [True, False])
def test_an_intent_whose_response_was_lost_is_opened_again(harness: LedgerHarness, committed: bool) -> None:
    intents = replays(1, 2, 3)
    engine = harness.ledger.database.engine
    with responses_lost(engine, times=1, committed=committed), pytest.raises(TemporaryError, match="did not confirm"):
        harness.ledger.replays.open(intents)
    later = [replace(one, due_at=one.due_at + 60) for one in intents]
    first = intents if committed else later
    assert harness.ledger.replays.open(later) == {one.replay_id: one for one in first}


@pytest.mark.parametrize("committed", [True, False])
def test_a_mark_whose_response_was_lost_is_made_again(harness: LedgerHarness, committed: bool) -> None:
    intents = replays(1, 2, 3)
    harness.ledger.replays.open(intents)
    engine = harness.ledger.database.engine
    with responses_lost(engine, times=1, committed=committed), pytest.raises(TemporaryError, match="did not confirm"):
        harness.ledger.replays.mark_sent(ids(intents))
    assert {one.sent for one in harness.ledger.replays.open(intents).values()} == {committed}
    harness.ledger.replays.mark_sent(ids(intents))
    assert {one.sent for one in harness.ledger.replays.open(intents).values()} == {True}


# The audit in the same ledger


def test_started_and_ended_actions_are_in_the_audit(harness: LedgerHarness) -> None:
    details = {"filter": "error ~ 'timeout' 😀", "rate": 10.5, "ids": ["1", "2"]}
    entry = harness.ledger.audits.begin("replay", queue="q-dlq", who="ana@host", details=details)
    (begun,) = harness.ledger.audits.latest(limit=10)
    assert (begun.id, begun.details, begun.outcome, begun.ended_at) == (entry, details, None, None)
    harness.ledger.audits.end(entry, messages=12, outcome="done")
    harness.ledger.audits.end(entry, messages=99, outcome="failed")
    (ended,) = harness.ledger.audits.latest(limit=10)
    assert (ended.messages, ended.outcome) == (12, "done")
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.began_at == begun.began_at


def test_audit_details_that_are_too_long_are_truncated(harness: LedgerHarness) -> None:
    names = [f"s3://landing/{number}/{'😀' * 300}" for number in range(1_000)]
    harness.ledger.audits.begin("retry", queue="q", who="ana@host", details={"objects": names})
    (row,) = harness.ledger.audits.latest(limit=1)
    *kept, more = row.details["objects"]
    assert kept == names[: len(kept)]
    assert more == f"and {1_000 - len(kept):,} more"


def test_concurrent_audit_entries_are_all_recorded(shared_harness: LedgerHarness) -> None:
    audits = shared_harness.ledger.audits

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
def test_an_audit_entry_whose_response_was_lost_is_absent_or_without_an_end(
    harness: LedgerHarness, committed: bool
) -> None:
    engine = harness.ledger.database.engine
    with responses_lost(engine, times=1, committed=committed), pytest.raises(TemporaryError, match="did not confirm"):
        harness.ledger.audits.begin("purge", queue="q-dlq", who="ana", details={})
    assert [row.outcome for row in harness.ledger.audits.latest(limit=10)] == ([None] if committed else [])
