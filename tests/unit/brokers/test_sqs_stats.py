"""Statistics of a queue, and purging it."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import Answers, FakeApi, KnownQueues, client_error

from penstock.brokers.sqs.queues import purge, read_stats
from penstock.errors import QueueMissing, TemporaryError

COUNTS = {
    "ApproximateNumberOfMessages": "5",
    "ApproximateNumberOfMessagesNotVisible": "3",
    "ApproximateNumberOfMessagesDelayed": "2",
}


def purging(error: Exception | None) -> Answers:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        return (error or {}) if operation == "purge_queue" else {"Attributes": COUNTS}

    return answer


def caused_by(code: str) -> TemporaryError:
    error = TemporaryError("AWS's words")
    error.__cause__ = client_error(code, operation="PurgeQueue")
    return error


def test_counts_are_those_of_sqs_and_ages_are_unknown() -> None:
    api = FakeApi(purging(None))
    stats = read_stats(api, KnownQueues(api), "q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (5, 3, 2)
    assert (stats.oldest_visible_message_age_seconds, stats.oldest_message_age_seconds) == (None, None)


def test_a_purge_returns_the_number_of_messages() -> None:
    api = FakeApi(purging(None))
    assert purge(api, KnownQueues(api), "q") == 10
    assert api.operations()[-1] == "purge_queue"


def test_a_purge_too_soon_after_another_names_the_interval() -> None:
    api = FakeApi(purging(caused_by("AWS.SimpleQueueService.PurgeQueueInProgress")))
    with pytest.raises(TemporaryError, match="purged within the last 60 s"):
        purge(api, KnownQueues(api), "q")


def test_other_purge_errors_are_raised_unchanged() -> None:
    api = FakeApi(purging(caused_by("RequestThrottled")))
    with pytest.raises(TemporaryError, match="AWS's words"):
        purge(api, KnownQueues(api), "q")


def test_a_missing_queue_has_no_messages() -> None:
    api = FakeApi(lambda operation, parameters: QueueMissing("gone"))
    assert read_stats(api, KnownQueues(api), "q").visible == 0
    assert purge(api, KnownQueues(api), "q") == 0
