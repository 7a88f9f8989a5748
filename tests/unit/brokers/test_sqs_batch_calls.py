"""Batch calls of ten entries, of which SQS accepts some and rejects others."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, Q, batches, succeeded

from penstock.brokers.sqs.calls import ENTRY_TRIES_MAX
from penstock.errors import ConfigurationError, TemporaryError

DELETE = "delete_message_batch"


def handles(count: int) -> list[Mapping[str, Any]]:
    return [{"ReceiptHandle": f"r{n}"} for n in range(count)]


def sent_handles(api: FakeApi) -> list[list[str]]:
    return sorted([entry["ReceiptHandle"] for entry in entries] for entries in api.entries(DELETE))


def test_row_67_more_than_ten_entries_are_split() -> None:
    api = FakeApi()
    assert batches(api).run(Q, DELETE, handles(23)) == {}
    assert sorted(map(len, sent_handles(api))) == [3, 10, 10]
    assert sorted(handle for call in sent_handles(api) for handle in call) == sorted(f"r{n}" for n in range(23))


def test_row_68_only_failed_entries_are_retried() -> None:
    answers = iter([{"3": "InternalError", "7": "throttled"}, {"7": "throttled"}, {}])

    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        codes = {id: code.lower() for id, code in next(answers).items()}
        return succeeded(parameters["Entries"], codes)

    api = FakeApi(answer)
    assert batches(api).run(Q, DELETE, handles(10)) == {}
    assert [len(call) for call in api.entries(DELETE)] == [10, 2, 1]
    assert [entry["ReceiptHandle"] for entry in api.entries(DELETE)[1]] == ["r3", "r7"]


def test_an_entry_that_failed_by_the_senders_fault_is_not_retried() -> None:
    answers = iter([{"1": "ReceiptHandleIsInvalid", "2": "throttled"}, {}])
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], next(answers)))
    failed = batches(api).run(Q, DELETE, handles(3))
    assert {position: each.code for position, each in failed.items()} == {1: "ReceiptHandleIsInvalid"}
    assert [len(call) for call in api.entries(DELETE)] == [3, 1]


def test_an_entry_that_keeps_failing_is_returned_as_failed() -> None:
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], {"0": "throttled"}))
    failed = batches(api).run(Q, DELETE, handles(2))
    assert list(failed) == [0]
    assert str(failed[0]) == "throttled: no"
    assert [len(call) for call in api.entries(DELETE)] == [2] + [1] * (ENTRY_TRIES_MAX - 1)


def test_an_entry_missing_from_the_response_counts_as_failed() -> None:
    api = FakeApi(lambda operation, parameters: {"Successful": [{"Id": "0"}]})
    assert list(batches(api).run(Q, DELETE, handles(2))) == [1]


def test_if_one_call_fails_its_entries_count_as_failed() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        entries = parameters["Entries"]
        return TemporaryError("away") if entries[0]["ReceiptHandle"] == "r10" else succeeded(entries)

    failed = batches(FakeApi(answer)).run(Q, DELETE, handles(25))
    assert sorted(failed) == list(range(10, 20))
    assert "away" in str(failed[10])


def test_a_failed_entry_is_returned_by_its_position_among_all_entries() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        entries = parameters["Entries"]
        codes = {"2": "ReceiptHandleIsInvalid"} if entries[0]["ReceiptHandle"] == "r10" else {}
        return succeeded(entries, codes)

    assert list(batches(FakeApi(answer)).run(Q, DELETE, handles(25))) == [12]


def test_run_raises_if_all_calls_fail() -> None:
    with pytest.raises(TemporaryError, match="away"):
        batches(FakeApi(lambda operation, parameters: TemporaryError("away"))).run(Q, DELETE, handles(25))


def test_a_configuration_error_is_raised_even_if_other_calls_succeed() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        entries = parameters["Entries"]
        return ConfigurationError("no right") if entries[0]["ReceiptHandle"] == "r10" else succeeded(entries)

    with pytest.raises(ConfigurationError, match="no right"):
        batches(FakeApi(answer)).run(Q, DELETE, handles(25))


def test_no_entries_make_no_call() -> None:
    api = FakeApi()
    assert batches(api).run(Q, DELETE, []) == {}
    assert api.calls == []
