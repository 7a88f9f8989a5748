"""Descriptions of exceptions, with their location in the user's code."""

import json

import pytest

from penstock.errors import ConfigurationError, FaultPersists, TransformError
from penstock.messaging.failure import end_of, failure_of, location_of


def test_the_location_is_the_innermost_frame_in_the_users_code() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")  # raised in the standard library
    assert (location_of(caught.value) or "").startswith("test_failure.py:")


def test_an_exception_that_was_never_raised_has_no_location() -> None:
    assert location_of(ValueError()) is None


def test_the_summary_of_an_exception_without_a_text_is_its_type() -> None:
    assert failure_of(KeyError()).summary == "KeyError"


@pytest.mark.parametrize(
    ("raised", "has_traceback"),
    [
        (ConfigurationError("no region"), False),
        (FaultPersists("the disk is full"), False),
        (TransformError("the transform raised"), True),
        (ValueError("a defect"), True),
    ],
)
def test_the_end_of_a_worker_has_no_traceback_if_a_person_can_repair_the_cause(
    raised: Exception, has_traceback: bool
) -> None:
    with pytest.raises(type(raised)) as caught:
        raise raised
    end = end_of(caught.value)
    assert end.error == str(raised)
    assert ("Traceback" in end.traceback) is has_traceback
