"""Calls of ten, of which SQS takes some entries and refuses others."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, Q, batches, succeeded

from penstock.brokers.sqs.calls import ENTRY_TRIES_MAX
from penstock.errors import ConfigurationError, TemporaryError

DELETE = "delete_message_batch"


def handles(count: int) -> list[Mapping[str, Any]]:
    return [{"ReceiptHandle": f"r{n}"} for n in range(count)]


def said(api: FakeApi) -> list[list[str]]:
    return sorted([entry["ReceiptHandle"] for entry in entries] for entries in api.entries(DELETE))


def test_row_67_more_than_ten_are_split() -> None:
    api = FakeApi()
    assert batches(api).run(Q, DELETE, handles(23)) == {}
    assert sorted(map(len, said(api))) == [3, 10, 10]
    assert sorted(handle for call in said(api) for handle in call) == sorted(f"r{n}" for n in range(23))


def test_row_68_only_what_failed_is_asked_for_again() -> None:
    answers = iter([{"3": "InternalError", "7": "throttled"}, {"7": "throttled"}, {}])

    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        codes = {id: code.lower() for id, code in next(answers).items()}
        return succeeded(parameters["Entries"], codes)

    api = FakeApi(answer)
    assert batches(api).run(Q, DELETE, handles(10)) == {}
    assert [len(call) for call in api.entries(DELETE)] == [10, 2, 1]
    assert [entry["ReceiptHandle"] for entry in api.entries(DELETE)[1]] == ["r3", "r7"]


def test_what_is_the_senders_fault_is_asked_for_once() -> None:
    answers = iter([{"1": "ReceiptHandleIsInvalid", "2": "throttled"}, {}])
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], next(answers)))
    failed = batches(api).run(Q, DELETE, handles(3))
    assert {place: each.code for place, each in failed.items()} == {1: "ReceiptHandleIsInvalid"}
    assert [len(call) for call in api.entries(DELETE)] == [3, 1]


def test_what_fails_again_and_again_is_answered() -> None:
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], {"0": "throttled"}))
    failed = batches(api).run(Q, DELETE, handles(2))
    assert list(failed) == [0]
    assert str(failed[0]) == "throttled: no"
    assert [len(call) for call in api.entries(DELETE)] == [2] + [1] * (ENTRY_TRIES_MAX - 1)


def test_an_entry_that_the_answer_forgets_failed() -> None:
    api = FakeApi(lambda operation, parameters: {"Successful": [{"Id": "0"}]})
    assert list(batches(api).run(Q, DELETE, handles(2))) == [1]


def test_where_one_call_fails_its_entries_do() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        entries = parameters["Entries"]
        return TemporaryError("away") if entries[0]["ReceiptHandle"] == "r10" else succeeded(entries)

    failed = batches(FakeApi(answer)).run(Q, DELETE, handles(25))
    assert sorted(failed) == list(range(10, 20))
    assert "away" in str(failed[10])


def test_an_entry_that_fails_is_named_by_its_place_among_all() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        entries = parameters["Entries"]
        codes = {"2": "ReceiptHandleIsInvalid"} if entries[0]["ReceiptHandle"] == "r10" else {}
        return succeeded(entries, codes)

    assert list(batches(FakeApi(answer)).run(Q, DELETE, handles(25))) == [12]


def test_where_all_calls_fail_it_raises() -> None:
    with pytest.raises(TemporaryError, match="away"):
        batches(FakeApi(lambda operation, parameters: TemporaryError("away"))).run(Q, DELETE, handles(25))


def test_what_only_a_person_can_mend_is_raised_even_if_other_calls_succeed() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        entries = parameters["Entries"]
        return ConfigurationError("no right") if entries[0]["ReceiptHandle"] == "r10" else succeeded(entries)

    with pytest.raises(ConfigurationError, match="no right"):
        batches(FakeApi(answer)).run(Q, DELETE, handles(25))


def test_nothing_is_no_call() -> None:
    api = FakeApi()
    assert batches(api).run(Q, DELETE, []) == {}
    assert api.calls == []
