"""The number of failures in a row after which the cause is the pipeline and not the data."""

import pytest

from penstock.errors import FaultPersists, TemporaryError
from penstock.pipeline.engine import RunBroken
from penstock.pipeline.failures import DISJOINT_FAILURES_LATER_MAX, DISJOINT_FAILURES_MAX, FailureStreak


def broken(fingerprint: str = "same") -> RunBroken:
    return RunBroken("ValueError: no", fingerprint=fingerprint)


def ids(*numbers: int) -> frozenset[bytes]:
    return frozenset(bytes([number]) for number in numbers)


def test_the_same_failure_of_disjoint_batches_stops_the_pipeline() -> None:
    streak = FailureStreak()
    answers = [streak.add(broken(), ids(number)) for number in range(DISJOINT_FAILURES_MAX)]
    assert answers[:-1] == [None] * (DISJOINT_FAILURES_MAX - 1)
    assert "ValueError: no" in str(answers[-1])


def test_repeated_failures_with_the_same_object_do_not_stop_the_pipeline() -> None:
    streak = FailureStreak()
    assert all(streak.add(broken(), ids(1, number)) is None for number in range(2, 30))


def test_a_different_failure_in_between_restarts_the_count() -> None:
    streak = FailureStreak()
    for number in range(20):
        assert streak.add(broken(), ids(number)) is None
        assert streak.add(broken(), ids(100 + number)) is None
        assert streak.add(broken("another"), ids(200 + number)) is None


def test_a_pipeline_that_has_worked_tolerates_a_longer_streak() -> None:
    streak = FailureStreak()
    streak.clear()
    answers = [streak.add(broken(), ids(number)) for number in range(DISJOINT_FAILURES_LATER_MAX)]
    assert answers[:-1] == [None] * (DISJOINT_FAILURES_LATER_MAX - 1)
    assert answers[-1] is not None


def test_a_lone_object_gets_one_last_attempt() -> None:
    streak = FailureStreak()
    assert [streak.grant_last_attempt(name) for name in (b"a", b"b", b"a")] == [True, True, False]


def test_consecutive_infrastructure_faults_end_the_job() -> None:
    streak = FailureStreak(faults_max=2)
    streak.add_fault(TemporaryError("disk full"), known=0)
    streak.clear()
    streak.add_fault(TemporaryError("disk full"), known=0)
    with pytest.raises(FaultPersists, match="disk full"):
        streak.add_fault(TemporaryError("disk full"), known=1)


def test_batches_that_overlap_in_one_outage_count_one_fault() -> None:
    streak = FailureStreak(faults_max=3)
    first = [streak.add_fault(TemporaryError("no network"), known=0) for _ in range(8)]
    second = [streak.add_fault(TemporaryError("no network"), known=1) for _ in range(8)]
    assert (first, second) == ([1, *[0] * 7], [2, *[0] * 7])
    with pytest.raises(FaultPersists, match="no network"):
        streak.add_fault(TemporaryError("no network"), known=2)


def test_a_worker_without_an_end_tolerates_any_number_of_faults() -> None:
    streak = FailureStreak()
    for known in range(50):
        streak.add_fault(TemporaryError("disk full"), known=known)
    assert streak.faults == 50
