"""Records of replays: chunks, duplicates and stored names. The conformance tests cover each database."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import event

from penstock.ledger import Ledger
from penstock.ledger.dead_letters import AT_ONCE_MAX
from penstock.messaging.replay import Replay, replay_id_of


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger.open("sqlite://")
    yield ledger
    ledger.close()


def replay(number: int) -> Replay:
    dead_letter_id = f"l{number}"
    return Replay(
        replay_id=replay_id_of("q-dlq", dead_letter_id),
        dead_letter_queue="q-dlq",
        dead_letter_id=dead_letter_id,
        queue="q",
        count=1,
        due_at=number + 0.1,
    )


def recorded_statements(ledger: Ledger) -> list[str]:
    executed: list[str] = []
    event.listen(ledger.database.engine, "before_cursor_execute", lambda c, k, sql, *rest: executed.append(sql))
    return executed


def test_empty_lists_run_no_statement(ledger: Ledger) -> None:
    executed = recorded_statements(ledger)
    assert ledger.replays.open([]) == {}
    ledger.replays.mark_sent([])
    assert executed == []


def test_many_replays_are_processed_in_chunks(ledger: Ledger) -> None:
    many = [replay(number) for number in range(2 * AT_ONCE_MAX + 1)]
    executed = recorded_statements(ledger)
    assert ledger.replays.open(many) == {one.replay_id: one for one in many}
    assert sum(sql.startswith("SELECT") for sql in executed) == 3
    executed.clear()
    ledger.replays.mark_sent([one.replay_id for one in many])
    assert sum(sql.startswith("UPDATE") for sql in executed) == 3
    assert all(one.sent for one in ledger.replays.open(many).values())


def test_a_replay_given_twice_is_stored_once(ledger: Ledger) -> None:
    one = replay(1)
    assert ledger.replays.open([one, one]) == {one.replay_id: one}
    ledger.replays.mark_sent([one.replay_id, one.replay_id])
    assert ledger.replays.open([one]) == {one.replay_id: replace(one, sent=True)}


def test_names_that_no_database_accepts_are_stored_escaped(ledger: Ledger) -> None:
    odd = replace(replay(1), dead_letter_queue="q\0-dlq", dead_letter_id="l\udcff")
    (kept,) = ledger.replays.open([odd]).values()
    assert (kept.dead_letter_queue, kept.dead_letter_id) == ("q\\x00-dlq", "l\\udcff")
