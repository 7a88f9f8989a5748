"""Exceptions in words: where in the user's code they were raised."""

import json

import pytest

from penstock.errors import ConfigurationError, FaultPersists, TransformError
from penstock.messaging.failure import end_of, failure_of, location_of


def test_the_place_is_the_innermost_frame_of_the_users_own() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")  # raised in the standard library
    assert (location_of(caught.value) or "").startswith("test_failure.py:")


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert location_of(ValueError()) is None


def test_words_without_a_text_are_the_type() -> None:
    assert failure_of(KeyError()).summary == "KeyError"


@pytest.mark.parametrize(
    ("raised", "is_told"),
    [
        (ConfigurationError("no region"), False),
        (FaultPersists("the disk is full"), False),
        (TransformError("the transform raised"), True),
        (ValueError("a defect"), True),
    ],
)
def test_the_end_of_a_worker_has_no_traceback_where_a_person_can_mend_it(raised: Exception, is_told: bool) -> None:
    with pytest.raises(type(raised)) as caught:
        raise raised
    told = end_of(caught.value)
    assert told.error == str(raised)
    assert ("Traceback" in told.traceback) is is_told
