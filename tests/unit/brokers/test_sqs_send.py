"""Sending: how messages are split into calls, and the results of those that fail."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import Answers, FakeApi, KnownQueues, Q, batches, client_error, succeeded

from penstock.brokers.sqs.calls import ENTRY_TRIES_MAX
from penstock.brokers.sqs.envelope import opened
from penstock.brokers.sqs.limits import MESSAGE_BYTES_MAX
from penstock.brokers.sqs.send import SEND, SqsSender
from penstock.errors import ConfigurationError, TemporaryError, UnknownOutcome
from penstock.messaging.message import Outgoing


def sender_of(api: FakeApi) -> SqsSender:
    return SqsSender(api, KnownQueues(api), batches(api))


def numbered(count: int, **fields: Any) -> list[Outgoing]:
    return [Outgoing(body=str(n).encode(), **fields) for n in range(count)]


def sent_bodies(api: FakeApi) -> list[list[str]]:
    return [[entry["MessageBody"] for entry in entries] for entries in api.entries(SEND)]


def throttled() -> TemporaryError:
    error = TemporaryError("slow down")
    error.__cause__ = client_error("RequestThrottled")
    return error


def test_calls_have_ten_messages_in_order_and_ids_match_them() -> None:
    api = FakeApi()
    assert sender_of(api).send("q", numbered(23)) == [f"m{n}" for n in range(23)]
    assert sent_bodies(api) == [[str(n) for n in range(start, min(start + 10, 23))] for start in (0, 10, 20)]


def test_calls_have_at_most_a_mebibyte() -> None:
    api = FakeApi()
    sizes = (MESSAGE_BYTES_MAX, 1, MESSAGE_BYTES_MAX - 1, 1)
    sender_of(api).send("q", [Outgoing(body=b"x" * size) for size in sizes])
    assert [[len(body) for body in call] for call in sent_bodies(api)] == [[sizes[0]], [1, sizes[2]], [1]]


def test_attributes_count_towards_the_size_limit() -> None:
    attributed = Outgoing(body=b"x" * (MESSAGE_BYTES_MAX - 10), attributes={"name": "0123456789"})
    with pytest.raises(ConfigurationError, match="with its attributes"):
        sender_of(FakeApi()).send("q", [attributed])


def test_a_binary_body_counts_in_base64() -> None:
    with pytest.raises(ConfigurationError, match="base64"):
        sender_of(FakeApi()).send("q", [Outgoing(body=b"\xff" * (MESSAGE_BYTES_MAX - 10))])


def test_only_failed_messages_are_sent_again_and_ids_keep_their_order() -> None:
    answers = iter([{"1": "throttled"}, {}])
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], next(answers)))
    assert sender_of(api).send("q", numbered(3)) == ["m0", "m1", "m2"]
    assert sent_bodies(api) == [["0", "1", "2"], ["1"]]


def test_a_partial_send_reports_how_many_messages_were_sent() -> None:
    calls = iter([None, *[throttled()] * ENTRY_TRIES_MAX])

    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        error = next(calls)
        if error is not None:
            raise error
        return succeeded(parameters["Entries"], {})

    with pytest.raises(UnknownOutcome, match="10 of 23 messages were sent before that"):
        sender_of(FakeApi(answer)).send("q", numbered(23))


def test_a_message_that_sqs_never_accepts_raises_a_configuration_error() -> None:
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], {"1": "InvalidMessageContents"}))
    with pytest.raises(ConfigurationError, match="InvalidMessageContents"):
        sender_of(api).send("q", numbered(3))
    assert len(sent_bodies(api)) == 1


def test_a_message_that_stays_throttled_raises_a_temporary_error() -> None:
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], {"0": "throttled"}))
    with pytest.raises(TemporaryError, match="throttled"):
        sender_of(api).send("q", numbered(1))
    assert len(sent_bodies(api)) == ENTRY_TRIES_MAX


def test_a_throttled_call_is_retried() -> None:
    errors: list[Exception] = [throttled(), throttled()]
    api = FakeApi(lambda operation, parameters: errors.pop() if errors else succeeded(parameters["Entries"]))
    assert sender_of(api).send("q", numbered(2)) == ["m0", "m1"]
    assert len(sent_bodies(api)) == 3


def test_a_call_with_an_unknown_outcome_is_not_retried() -> None:
    broke = UnknownOutcome("broke")
    broke.__cause__ = ConnectionError("the connection was closed")
    api = FakeApi(lambda operation, parameters: broke)
    with pytest.raises(UnknownOutcome):
        sender_of(api).send("q", numbered(30))
    assert len(sent_bodies(api)) == 1


def test_try_all_returns_a_result_for_each_entry() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        first = parameters["Entries"][0]["MessageBody"]
        failed = {"0": "InvalidMessageContents"} if first == "0" else {}
        return UnknownOutcome("broke") if first == "10" else succeeded(parameters["Entries"], failed)

    api = FakeApi(answer)
    entries = [{"MessageBody": str(n)} for n in range(21)]
    answers = sender_of(api).try_all(KnownQueues(api).find("q-dlq"), entries)
    assert [type(each).__name__ for each in answers] == [
        "ConfigurationError",
        *["str"] * 9,
        *["UnknownOutcome"] * 10,
        "TemporaryError",  # nothing is sent after a call that failed as a whole
    ]


# --- delays


def test_delays_are_rounded_up_to_whole_seconds() -> None:
    api = FakeApi()
    sender_of(api).send(
        "q", [Outgoing(body=b"a", delay_seconds=0.2), Outgoing(body=b"b"), Outgoing(body=b"c", delay_seconds=900)]
    )
    assert [entry.get("DelaySeconds") for entry in api.entries(SEND)[0]] == [1, None, 900]


@pytest.mark.parametrize(("queue", "words"), [("q", "900 s that SQS can"), ("q.fifo", "900 s that SQS can")])
def test_a_delay_over_the_limit_is_rejected_before_any_call(queue: str, words: str) -> None:
    api = FakeApi()
    with pytest.raises(ConfigurationError, match=words):
        sender_of(api).send(queue, [*numbered(1), Outgoing(body=b"late", delay_seconds=901)])
    assert api.calls == []


def test_a_delay_in_a_fifo_queue_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="FIFO queues delay no single message"):
        sender_of(FakeApi()).send("q.fifo", [Outgoing(body=b"x", delay_seconds=1)])


# --- FIFO


def sent_to_fifo(messages: Sequence[Outgoing], *, by_content: bool = False) -> list[list[Mapping[str, Any]]]:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if operation == "get_queue_attributes":
            return {"Attributes": {"ContentBasedDeduplication": str(by_content).lower()}}
        return succeeded(parameters["Entries"])

    api = FakeApi(answer)  # type: ignore[arg-type]
    sender_of(api).send("q.fifo", messages)
    return [list(call) for call in api.entries(SEND)]


def test_each_message_has_a_group_and_a_deduplication_id() -> None:
    ((first, second),) = sent_to_fifo([Outgoing(body=b"x", group="a", deduplication_id="tick"), Outgoing(body=b"x")])
    assert (first["MessageGroupId"], first["MessageDeduplicationId"]) == ("a", "tick")
    assert second["MessageGroupId"] != "a"
    assert len(second["MessageDeduplicationId"]) == 32


def test_a_queue_that_deduplicates_by_content_gets_no_deduplication_id() -> None:
    ((entry,),) = sent_to_fifo([Outgoing(body=b"x", group="a")], by_content=True)
    assert "MessageDeduplicationId" not in entry


def test_no_call_has_two_messages_of_one_group() -> None:
    calls = sent_to_fifo([Outgoing(body=f"{group}{n}".encode(), group=group) for n in range(3) for group in "abc"])
    assert [[entry["MessageBody"] for entry in call] for call in calls] == [
        ["a0", "b0", "c0"],
        ["a1", "b1", "c1"],
        ["a2", "b2", "c2"],
    ]


# --- groups of standard queues


REFUSED = "The request include parameter MessageGroupId that is not valid for this queue type."


def groupless(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Respond as a server that rejects groups in standard queues, entry by entry."""
    entries = parameters["Entries"]
    refused = [entry["Id"] for entry in entries if "MessageGroupId" in entry]
    answer = succeeded([entry for entry in entries if entry["Id"] not in refused])
    failed = [{"Id": id, "Code": "InvalidParameterValue", "SenderFault": True, "Message": REFUSED} for id in refused]
    return {**answer, "Failed": failed}


def groupless_calls(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
    """Respond as a server that rejects the whole call instead."""
    entries = parameters["Entries"]
    return ConfigurationError(REFUSED) if any("MessageGroupId" in each for each in entries) else succeeded(entries)


@pytest.mark.parametrize("answers", [groupless, groupless_calls])
def test_groups_that_a_standard_queue_rejects_are_sent_in_the_notes(answers: Answers) -> None:
    api = FakeApi(answers)
    sender = sender_of(api)
    messages = [Outgoing(body=b"0"), Outgoing(body=b"1", group="tenant")]
    assert sender.send("q", messages) == ["m0", "m1"]
    (_, again) = api.entries(SEND)
    entry = again[-1]
    raw = {"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]}
    assert opened(raw) == (b"1", {}, "tenant")
    sender.send("q", messages)
    assert len(api.entries(SEND)) == 3  # the refusal is remembered


def test_a_group_that_a_fifo_queue_rejects_is_not_sent_in_the_notes() -> None:
    api = FakeApi(groupless)
    with pytest.raises(ConfigurationError, match="MessageGroupId"):
        sender_of(api).send("q.fifo", numbered(1, group="a", deduplication_id="1"))
    assert len(api.entries(SEND)) == 1


def test_try_all_sends_the_other_entries_of_a_call_that_one_entry_fails() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        entries = parameters["Entries"]
        spoiled = any(entry["MessageBody"] == "1" for entry in entries)
        return ConfigurationError("BatchRequestTooLong") if spoiled else succeeded(entries)

    answers = sender_of(FakeApi(answer)).try_all(Q, [{"MessageBody": str(n)} for n in range(3)])
    assert (answers[0], answers[2]) == ("m0", "m2")
    assert isinstance(answers[1], ConfigurationError)


def test_throttling_is_retried_even_if_reported_as_the_senders_fault() -> None:
    answers = iter([{"0": "KMS.ThrottlingException"}, {}])
    api = FakeApi(lambda operation, parameters: succeeded(parameters["Entries"], next(answers)))
    assert sender_of(api).send("q", numbered(1)) == ["m0"]


def test_try_send_returns_a_result_for_each_message_and_continues_after_failures() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        bodies = [entry["MessageBody"] for entry in parameters["Entries"]]
        if "11" in bodies:
            raise TemporaryError("it is away")
        return succeeded(parameters["Entries"], {"1": "InvalidMessageContents"} if "0" in bodies else {})

    huge = Outgoing(body=b"x" * (MESSAGE_BYTES_MAX + 1))
    api = FakeApi(answer)
    answers = sender_of(api).try_send("q", [huge, *numbered(12)])
    assert [type(each) for each in answers[:3]] == [ConfigurationError, str, ConfigurationError]
    assert answers[3:11] == [f"m{n}" for n in range(2, 10)]
    assert [type(each) for each in answers[11:]] == [TemporaryError] * 2
    assert len(sent_bodies(api)) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_try_send_raises_an_error_of_the_queue(count: int) -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Exception:
        error = ConfigurationError("here refuses sqs:SendMessage")
        error.__cause__ = client_error("AccessDenied", status=403)
        return error

    with pytest.raises(ConfigurationError, match="refuses sqs:SendMessage"):
        sender_of(FakeApi(answer)).try_send("q", numbered(count))


def test_try_send_returns_its_own_error_for_a_message_that_fails_its_call() -> None:
    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        if any(entry["MessageBody"] == "1" for entry in parameters["Entries"]):
            error = ConfigurationError("SQS never takes that")
            error.__cause__ = client_error("InvalidMessageContents")
            return error
        return succeeded(parameters["Entries"])

    answers = sender_of(FakeApi(answer)).try_send("q", numbered(3))
    assert [answers[0], type(answers[1]), answers[2]] == ["m0", ConfigurationError, "m2"]
