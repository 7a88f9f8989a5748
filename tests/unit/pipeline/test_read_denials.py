"""When a refusal to read counts as an attempt of the object."""

import pytest

from penstock.ledger.records import AttemptFailure
from penstock.pipeline.failures import OBJECTS_REMEMBERED_MAX, Denials
from penstock.pipeline.spark.engine import judged
from penstock.pipeline.spark.source.report import FailureKind, ObjectFailure

A, B = b"a", b"b"


def test_a_refusal_alone_is_the_object_s_own() -> None:
    denials = Denials()
    assert [denials.add(A), denials.add(A)] == [False, False]


def test_refusals_of_several_objects_are_not() -> None:
    denials = Denials()
    assert [denials.add(A), denials.add(B), denials.add(A)] == [False, True, True]


def test_a_success_in_between_makes_them_each_object_s_own_again() -> None:
    denials = Denials()
    denials.add(A)
    denials.clear()
    assert not denials.add(B)


def test_no_more_is_remembered_than_needed() -> None:
    denials = Denials()
    for number in range(OBJECTS_REMEMBERED_MAX + 10):
        denials.add(str(number).encode())
    assert len(denials._denied) == OBJECTS_REMEMBERED_MAX
    assert denials.add(b"another")


def refused(*object_ids: bytes, kind: FailureKind = FailureKind.DENIED) -> dict[bytes, ObjectFailure]:
    return {object_id: ObjectFailure(kind=kind, reason="403") for object_id in object_ids}


@pytest.mark.parametrize("kind", [FailureKind.DENIED, FailureKind.DEVICE])
def test_a_run_that_was_refused_several_objects_charges_none_of_them(kind: FailureKind) -> None:
    found = judged(refused(A, B, kind=kind), Denials())
    assert [failure.uncounted for failure in found.values()] == [True, True]
    assert {failure.failure for failure in found.values()} == {AttemptFailure.RETRY}


def test_a_run_that_was_refused_one_object_charges_it_until_another_is_refused_too() -> None:
    denials = Denials()
    assert not judged(refused(A), denials)[A].uncounted
    assert judged(refused(B), denials)[B].uncounted
    assert judged(refused(A), denials)[A].uncounted


def test_other_failures_are_charged_whatever_is_refused() -> None:
    found = judged(refused(A, B) | refused(b"c", kind=FailureKind.UNREADABLE), Denials())
    assert [object_id for object_id, failure in found.items() if not failure.uncounted] == [b"c"]
