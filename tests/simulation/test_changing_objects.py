"""Random schedules of objects that change: the table follows the rule at every commit.

A plain run executes the first schedules in each format, the long matrix (``make test-slow``) more than two thousand. A
failure names its seed; ``python -m tests.simulation.changing SEED FORMAT`` finds a shorter schedule that fails.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.simulation.change_rules import RULES, Batch, Version
from tests.simulation.changing import ChangeSabotage, ChangingRunner
from tests.simulation.harness import Violation
from tests.simulation.test_schedules import UPKEEP

from penstock.errors import PublishHalted
from penstock.ledger import commits, versions
from penstock.ledger.records import BatchOutcome
from penstock.ledger.superseded import SupersededVersions
from penstock.ledger.tails import StoredBeginning
from penstock.ledger.versions import ReplacedRows, replace_earlier
from penstock.messaging.steps import Step
from penstock.sinks.delta import sink

FIRST = {"memory": 24, "delta": 8, "iceberg": 6}  # the schedules of a plain run
GROWING = {"memory": (5, 11), "delta": (5, 7), "iceberg": (10, 12)}  # seeds of objects that grow
CHUNKS = {"memory": 20, "delta": 12, "iceberg": 8}  # the others, in chunks that can be distributed over processes
CHUNK = 60
CHECKPOINTED = 6  # schedules with checkpoints
TRIED_MAX = 400  # until the oracle has to detect a broken rule


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ChangingRunner]:
    runner = ChangingRunner(tmp_path)
    yield runner
    runner.ledger.close()


@pytest.mark.parametrize("format", FIRST)
def test_the_table_follows_the_rule_at_every_commit(runner: ChangingRunner, format: str) -> None:
    happened: Counter[str] = Counter()
    for seed in range(FIRST[format]):
        schedule = runner.run(seed, format)
        happened.update({"batches": len(schedule.history), "checks": schedule.checks})
        happened["deaths"] += len(schedule.scheduler.deaths)

    assert happened["batches"] > 2 * FIRST[format]
    assert happened["checks"] > 5 * FIRST[format]
    assert happened["deaths"] > FIRST[format]


@pytest.mark.parametrize("format", FIRST)
def test_the_table_follows_the_rule_if_only_appended_lines_are_read(runner: ChangingRunner, format: str) -> None:
    grown = sum(runner.run(seed, format, rule="tail").grown for seed in range(*GROWING[format]))
    assert grown >= 2


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("step", [Step.CHECKPOINTING, Step.CHECKPOINTED])
def test_the_table_follows_the_rule_if_actors_die_beside_checkpoints(
    runner: ChangingRunner, step: Step, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "CHECKPOINT_INTERVAL", 2)
    deaths = 0
    for seed in range(CHECKPOINTED):
        with runner.schedule(seed, format) as schedule:
            schedule.scheduler.deadly_step = step.value
            schedule.run()
        deaths += schedule.scheduler.deaths.count(step.value)
    assert deaths >= 2


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(4))
def test_no_schedule_of_objects_that_grow_breaks_the_rule(runner: ChangingRunner, chunk: int) -> None:
    grown = sum(
        runner.run(seed, "memory", rule="tail").grown
        for seed in range(20_000 + chunk * CHUNK, 20_000 + (chunk + 1) * CHUNK)
    )
    assert grown > CHUNK // 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "chunk"), [(name, chunk) for name, count in CHUNKS.items() for chunk in range(count)]
)
def test_no_schedule_breaks_the_rule(runner: ChangingRunner, format: str, chunk: int) -> None:
    checks = 0
    for seed in range(FIRST[format] + chunk * CHUNK, FIRST[format] + (chunk + 1) * CHUNK):
        checks += runner.run(seed, format).checks

    assert checks > 5 * CHUNK


@pytest.mark.slow
def test_actors_die_at_every_step_and_everything_happens(runner: ChangingRunner) -> None:
    happened: Counter[str] = Counter()
    for seed in range(10_000, 10_600):
        schedule = runner.run(seed, "memory")
        happened.update(schedule.scheduler.log)
        happened.update(schedule.scheduler.deaths)
        events = {event.__name__ for _, event in schedule.events()}

    steps = {step.value for step in (set(Step) - UPKEEP) | {Step.COMPACTED, Step.COMPACTION_COMMITTED, Step.REWRITTEN}}
    steps -= {Step.ANNOUNCED.value, Step.QUARANTINE_PUBLISHED.value}  # no actor of these schedules takes them
    assert not {step for step in steps if not happened[step]}
    assert all(happened[event] > 50 for event in events), happened


@pytest.mark.parametrize(
    ("sabotage", "first", "sentence"),
    [
        pytest.param(ChangeSabotage.NOTHING_REPLACED, 0, "too many", id="nothing-replaced"),
        pytest.param(ChangeSabotage.UNCHECKED_READS, 0, "was not the store's version", id="unchecked-reads"),
        pytest.param(ChangeSabotage.UNCONDITIONAL, 0, "too many|and lacks", id="unconditional"),
        pytest.param(
            ChangeSabotage.CHANGED_BACK_UNSEEN,
            0,
            "not the store's version",
            id="changed-back-unseen",
            marks=pytest.mark.slow,  # few schedules meet it
        ),
    ],
)
def test_the_oracle_detects_a_broken_rule(
    runner: ChangingRunner, sabotage: ChangeSabotage, first: int, sentence: str
) -> None:
    """``first``: a seed that saves time, since few schedules meet some of them."""
    assert_detected(lambda seed: runner.run(seed, "memory", rule="replace", sabotage=sabotage), sentence, first=first)


def test_the_oracle_detects_commits_in_any_order(runner: ChangingRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def unordered(connection: Connection, outcome: BatchOutcome, *, seq: int) -> tuple[BatchOutcome, ReplacedRows]:
        since_seq = None if outcome.since_seq is None else seq + 1
        return replace_earlier(connection, replace(outcome, since_seq=since_seq), seq=seq)

    monkeypatch.setattr(commits, "replace_earlier", unordered)
    assert_detected(lambda seed: runner.run(seed, "memory", rule="replace"), "was not the store's", first=8)


def test_the_oracle_detects_a_beginning_that_is_not_checked(runner: ChangingRunner) -> None:
    sabotage = ChangeSabotage.BEGINNING_UNCHECKED
    assert_detected(lambda seed: runner.run(seed, "memory", rule="tail", sabotage=sabotage), "and lacks", first=0)


def test_the_oracle_detects_appended_rows_beside_those_of_another_version(
    runner: ChangingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def any_base(*_: object) -> dict[bytes, StoredBeginning]:
        """Let what was appended to any earlier version stay beside what the table has."""
        return {}

    monkeypatch.setattr(versions, "_bases", any_base)
    assert_detected(lambda seed: runner.run(seed, "memory", rule="tail"), "and lacks", first=0)


def test_the_oracle_detects_versions_that_cannot_come_back(
    runner: ChangingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(*_: object) -> None:
        """Leave superseded versions processed."""

    monkeypatch.setattr(SupersededVersions, "free", free)
    assert_detected(
        lambda seed: runner.run(seed, "memory", rule="replace"),
        "the store's version|finds unknown|does not become stable",
        first=3,
    )


def assert_detected(run: Callable[[int], Any], sentence: str, *, first: int) -> None:
    for seed in range(first, first + TRIED_MAX):
        try:
            run(seed)
        except (Violation, PublishHalted, AssertionError) as noticed:
            violation = noticed
            break
    else:
        pytest.fail(f"{TRIED_MAX} schedules, and no violation was detected")
    with pytest.raises((Violation, PublishHalted), match=sentence):
        raise violation


@pytest.mark.parametrize("format", ["memory", "delta"])
def test_a_schedule_is_determined_by_its_seed(tmp_path: Path, format: str) -> None:
    logs = []
    for folder in ("first", "second"):
        runner = ChangingRunner(tmp_path / folder)
        logs.append(runner.run(4711, format).scheduler.log)
        runner.ledger.close()
    assert logs[0] == logs[1]


A1, A2, B1 = (
    Version(key=key, id=id, lines=lines) for key, id, lines in [("a", b"1", "xy"), ("a", b"2", "z"), ("b", b"3", "x")]
)


@pytest.mark.parametrize(
    ("rule", "history", "shown"),
    [
        ("add", [[A1], [A2, B1]], "a:x a:y a:z b:x"),
        ("replace", [[A1], [A2, B1]], "a:z b:x"),
        ("replace", [[A1], [A2], [A1]], "a:x a:y"),
        ("tail", [[A1], [A2]], "a:z"),
        ("refuse", [[A1], [B1]], "a:x a:y b:x"),
        ("replace", [[A1, B1], "a"], "b:x"),
        ("add", [[A1, B1], "a", [A2]], "a:z b:x"),
    ],
)
def test_the_rules(rule: str, history: list[Any], shown: str) -> None:
    batches = [Batch(retracted=[one]) if isinstance(one, str) else Batch(versions=one) for one in history]
    assert sorted(RULES[rule].rows(batches).elements()) == [tuple(row.split(":")) for row in shown.split()]


@pytest.mark.parametrize(
    ("rule", "history", "lacks"),
    [
        ("replace", [[A1]], "not the store's version: ['a']"),
        ("replace", [[A1], [A2]], None),
        ("replace", [[A1], [A2], "a"], None),
        ("add", [[A1]], "never read: ['a']"),
        ("add", [[A2], [A2]], "a version was read twice"),
        ("refuse", [[A1]], None),
        ("refuse", [[A1], [A2]], "two versions of an object count"),
        ("refuse", [], "no version was read: ['a']"),
    ],
)
def test_the_rules_find_unfinished_work(rule: str, history: list[Any], lacks: str | None) -> None:
    batches = [Batch(retracted=[one]) if isinstance(one, str) else Batch(versions=one) for one in history]
    assert RULES[rule].unfinished(batches, {"a": A2}) == lacks
