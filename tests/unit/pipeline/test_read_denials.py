"""The conditions under which a refused read counts as an attempt of the object."""

import pytest

from penstock.ledger.records import AttemptFailure
from penstock.pipeline.failures import OBJECTS_REMEMBERED_MAX, Denials
from penstock.pipeline.spark.engine import judged
from penstock.pipeline.spark.source.report import FailureKind, ObjectFailure

A, B = b"a", b"b"


def test_refusals_of_one_object_are_counted() -> None:
    denials = Denials()
    assert [denials.add(A), denials.add(A)] == [False, False]


def test_refusals_of_several_objects_are_not_counted() -> None:
    denials = Denials()
    assert [denials.add(A), denials.add(B), denials.add(A)] == [False, True, True]


def test_after_a_success_the_next_refusal_is_counted_again() -> None:
    denials = Denials()
    denials.add(A)
    denials.clear()
    assert not denials.add(B)


def test_a_bounded_number_of_refusals_is_remembered() -> None:
    denials = Denials()
    for number in range(OBJECTS_REMEMBERED_MAX + 10):
        denials.add(str(number).encode())
    assert len(denials._denied) == OBJECTS_REMEMBERED_MAX
    assert denials.add(b"another")


def refused(*object_ids: bytes, kind: FailureKind = FailureKind.DENIED) -> dict[bytes, ObjectFailure]:
    return {object_id: ObjectFailure(kind=kind, reason="403") for object_id in object_ids}


@pytest.mark.parametrize("kind", [FailureKind.DENIED, FailureKind.DEVICE])
def test_a_run_with_several_refused_objects_counts_none_of_them(kind: FailureKind) -> None:
    found = judged(refused(A, B, kind=kind), Denials())
    assert [failure.uncounted for failure in found.values()] == [True, True]
    assert {failure.failure for failure in found.values()} == {AttemptFailure.RETRY}


def test_a_lone_refused_object_is_counted_until_another_is_refused_too() -> None:
    denials = Denials()
    assert not judged(refused(A), denials)[A].uncounted
    assert judged(refused(B), denials)[B].uncounted
    assert judged(refused(A), denials)[A].uncounted


def test_other_failures_are_counted_despite_refusals() -> None:
    found = judged(refused(A, B) | refused(b"c", kind=FailureKind.UNREADABLE), Denials())
    assert [object_id for object_id, failure in found.items() if not failure.uncounted] == [b"c"]


@pytest.mark.parametrize(
    ("kind", "consequence"),
    [
        (FailureKind.CORRUPT, AttemptFailure.DEAD),
        (FailureKind.TOO_LARGE, AttemptFailure.DEAD),
        (FailureKind.REPLAYED_NOTHING, AttemptFailure.DEAD),
        (FailureKind.UNREADABLE, AttemptFailure.RETRY),
        (FailureKind.REFUSED, AttemptFailure.RETRY),
        (FailureKind.DISAGREED, AttemptFailure.RETRY),
    ],
)
def test_only_an_object_that_every_attempt_would_find_the_same_fails_at_once(
    kind: FailureKind, consequence: AttemptFailure
) -> None:
    found = judged(refused(A, kind=kind), Denials())[A]
    assert (found.failure, found.uncounted) == (consequence, False)
