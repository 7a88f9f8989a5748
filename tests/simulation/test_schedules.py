"""Twenty thousand schedules over the real protocol code, each of them different, none of them with a violation.

A plain run plays the first 2,200 of them, the long matrix (``make test-slow``) the others.
A failure names its seed; ``python -m tests.simulation.replay SEED`` plays that schedule again and tells what happened.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulation.harness import Play, Sabotage, Theatre, Violation
from tests.simulation.oracle import judge

from penstock.errors import PublishHalted
from penstock.messaging.steps import Step

FIRST = 600  # schedules, of which one test looks at what happens in them
CHUNKS, CHUNK = 49, 400  # the others, in pieces that can be spread over processes
SHORT = 2  # of the chunks; the others run with make test-slow
HONEST = Sabotage()
UPKEEP = {  # has kill tests of its own
    Step.COMPACTED,
    Step.COMPACTION_COMMITTED,
    Step.LEFTOVER_MARKED,
    Step.CLEANING,
    Step.SET_ASIDE,
    Step.CLEANED,
    Step.ARCHIVE_WRITTEN,
    Step.ARCHIVING,
    Step.ARCHIVED,
    Step.REPAIRING,
    Step.REPAIRED,
    Step.REPLAY_INTENDED,
    Step.REPLAY_SENT,
    Step.REPLAY_MARKED,
    Step.DEAD_LETTERS_WRITTEN,
    Step.DEAD_LETTERS_KEPT,
    Step.DEAD_LETTERS_REMOVED,
}


@pytest.fixture
def theatre(tmp_path: Path) -> Iterator[Theatre]:
    theatre = Theatre(tmp_path)
    yield theatre
    theatre.close()


@pytest.mark.parametrize(
    "chunk",
    [pytest.param(chunk, marks=() if chunk < SHORT else pytest.mark.slow) for chunk in range(CHUNKS)],
)
def test_no_schedule_breaks_the_promise(theatre: Theatre, chunk: int) -> None:
    played = 0
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        with theatre.play(seed, HONEST) as play:
            perform(play)
        played += 1

    assert played == CHUNK


def test_the_first_model_has_deaths_at_every_step_and_all_other_actions(theatre: Theatre) -> None:
    deaths: set[str] = set()
    happened: Counter[str] = Counter()
    for seed in range(FIRST):
        with theatre.play(seed, HONEST) as play:
            perform(play)
        deaths.update(play.stage.deaths)
        happened.update(play.stage.log)
        events = {event.__name__ for _, event in play.events()}

    steps = {step.value for step in set(Step) - UPKEEP}
    assert steps - deaths == {Step.ANNOUNCED.value}, "announcing is the sender's business"
    assert all(happened[event] > 100 for event in events), happened
    for fault in ("ledger reply lost", "commit reply lost", "commit lost", "broker reply lost"):
        assert happened[fault] > 20, fault


@pytest.mark.parametrize(
    ("sabotage", "sentence"),
    [
        pytest.param(Sabotage(ack_before_commit=True), "ended unprocessed|rows: ", id="ack before commit"),
        pytest.param(Sabotage(publish_unconditionally=True), "rows are visible twice", id="publish unconditionally"),
        pytest.param(Sabotage(delete_open_attempts=True), "does not exist|missing", id="gc without tombstone"),
        pytest.param(
            Sabotage(commit_without_fence=True),
            "visible twice|abandoned attempt|charged|does not come to rest|acked before its objects",
            id="commit without fence",
        ),
        pytest.param(Sabotage(charge_what_was_given_back=True), "was charged", id="charge what was given back"),
        pytest.param(Sabotage(refund_what_crashed=True), "was charged|is dead after", id="refund what crashed"),
        pytest.param(Sabotage(drop_dead_letters=True), "dead letters", id="drop dead letters"),
    ],
)
def test_the_oracle_notices_a_broken_rule(theatre: Theatre, sabotage: Sabotage, sentence: str) -> None:
    for seed in range(300):
        with theatre.play(seed, sabotage) as play:
            try:
                perform(play)
            except (Violation, PublishHalted) as noticed:
                violation = noticed
                break
    else:
        pytest.fail("300 schedules, and nothing was noticed")

    with pytest.raises((Violation, PublishHalted), match=sentence):
        raise violation


def test_a_schedule_is_decided_by_its_seed(tmp_path: Path) -> None:
    assert _log(tmp_path, 4711) == _log(tmp_path, 4711)


def _log(folder: Path, seed: int) -> list[str]:
    theatre = Theatre(folder)
    with theatre.play(seed, HONEST) as play:
        perform(play)
    theatre.close()
    return play.stage.log


def perform(play: Play) -> None:
    """Run and check one schedule; a failure names the seed."""
    try:
        play.perform()
        judge(play)
    except Exception as error:
        error.add_note(f"in the schedule of seed {play.seed}, after {play.stage.log[-8:]}")
        raise
