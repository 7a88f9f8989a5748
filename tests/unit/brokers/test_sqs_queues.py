"""Lookup of queues and their dead-letter queues by name, URL or ARN, and creation of queues."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, client_error, instant_clock

from penstock.brokers.sqs import facts
from penstock.brokers.sqs.client import translate_error
from penstock.brokers.sqs.limits import valid_name
from penstock.brokers.sqs.queues import POLICY_SECONDS, SqsQueues
from penstock.errors import ConfigurationError, QueueMissing, TemporaryError
from penstock.messaging.broker import QueueSettings
from penstock.storage.aws import Aws

HOME = "https://sqs.us-east-1.amazonaws.com/1"


class Account:
    """An AWS account with queues and their attributes. In keyword names, two underscores are a dot."""

    def __init__(self, **queues: Mapping[str, str]) -> None:
        self.queues: dict[str, dict[str, str]] = {name.replace("__", "."): dict(each) for name, each in queues.items()}
        self.readable = True
        self.created_first: Mapping[str, str] = {}  # attributes with which another process creates a queue before us
        self.clock = instant_clock()
        self.api = FakeApi(self._answer)
        self.known = SqsQueues(self.api, clock=self.clock)

    def _answer(self, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        name = parameters.get("QueueName") or str(parameters.get("QueueUrl", "")).rpartition("/")[2]
        if operation == "create_queue" and self.created_first:
            self.queues[name] = dict(self.created_first)
            return _error("QueueNameExists", operation, name)
        if operation == "create_queue":
            self.queues[name] = {"QueueArn": f"arn:aws:sqs:us-east-1:1:{name}", **parameters["Attributes"]}
        if operation == "list_queues":
            start = int(parameters.get("NextToken", 0))
            page = sorted(self.queues)[start : start + 2]
            more = {"NextToken": str(start + 2)} if start + 2 < len(self.queues) else {}
            return {"QueueUrls": [f"{HOME}/{each}" for each in page], **more}
        if name not in self.queues:
            return _error("QueueDoesNotExist", operation, name)
        if operation == "set_queue_attributes":
            self.queues[name].update(parameters["Attributes"])
        if operation == "get_queue_attributes":
            return {"Attributes": self.queues[name]} if self.readable else _error("AccessDenied", operation, name)
        return {"QueueUrl": f"{HOME}/{name}"}


def _error(code: str, operation: str, queue: str) -> Exception:
    cause = client_error(code, operation=operation)
    error = translate_error(cause, action=operation, queue=queue, endpoint="here", known=False, final=True)
    error.__cause__ = cause
    return error


def redrive(target: str) -> dict[str, str]:
    return {
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:1:{target}", "maxReceiveCount": 5})
    }


def test_a_name_is_looked_up_once() -> None:
    account = Account(q={})
    assert account.known.find("q").url == account.known.find("q").url == f"{HOME}/q"
    assert account.api.operations() == ["get_queue_url"]
    account.known.forget("q")
    account.known.find("q")
    assert account.api.operations() == ["get_queue_url"] * 2


def test_a_queue_that_another_process_creates_at_the_same_time_gets_our_settings() -> None:
    account = Account()
    account.created_first = {"QueueArn": "arn:aws:sqs:us-east-1:1:q", "MessageRetentionPeriod": "60"}
    account.known.ensure([QueueSettings(name="q", retention_seconds=120)])
    assert account.queues["q"]["MessageRetentionPeriod"] == "120"


def test_a_url_needs_no_lookup() -> None:
    account = Account()
    assert account.known.find(f"{HOME}/q.fifo").is_fifo
    assert account.api.calls == []


def test_an_arn_is_looked_up_in_its_account() -> None:
    account = Account(q={})
    assert account.known.find("arn:aws:sqs:us-east-1:42:q").url == f"{HOME}/q"
    assert account.api.calls[0][2] == {"QueueName": "q", "QueueOwnerAWSAccountId": "42"}


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("missing", "There is no queue 'missing' at here; create it"),
        ("arn:aws:sns:us-east-1:1:topic", "is not the ARN of a queue"),
        ("arn:aws:sqs:eu-west-1:1:q", "is in eu-west-1, and this broker speaks to us-east-1: write sqs://eu-west-1"),
        ("", "needs a name"),
    ],
)
def test_an_invalid_or_missing_queue_raises_a_clear_error(queue: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Account(q={}).known.find(queue)


def test_the_dead_letter_queue_is_the_one_of_the_redrive_policy() -> None:
    account = Account(q=redrive("graves"), graves={}, **{"q-dlq": {}})
    assert account.known.dead_letter_queue(account.known.find("q")).url == f"{HOME}/graves"


def test_without_a_policy_the_dead_letter_queue_has_the_conventional_name() -> None:
    account = Account(q={}, **{"q-dlq": {}})
    assert account.known.dead_letter_queue(account.known.find("q")).url == f"{HOME}/q-dlq"
    account.readable = False
    account.clock.advance(POLICY_SECONDS)
    assert account.known.dead_letter_queue(account.known.find("q")).url == f"{HOME}/q-dlq"


def test_the_dead_letter_queue_of_a_fifo_queue_is_a_fifo_queue() -> None:
    account = Account(q__fifo={}, **{"q-dlq__fifo": {}})
    assert account.known.dead_letter_queue(account.known.find("q.fifo")).url == f"{HOME}/q-dlq.fifo"
    assert account.known.find("q.fifo-dlq").url == f"{HOME}/q-dlq.fifo"


def test_a_missing_dead_letter_queue_raises_an_error_with_the_remedy() -> None:
    account = Account(q={})
    with pytest.raises(QueueMissing, match=r"no dead-letter queue.*create that one, or give"):
        account.known.dead_letter_queue(account.known.find("q"))


def test_a_policy_is_read_again_after_a_while() -> None:
    account = Account(q=redrive("graves"), graves={}, other={})
    queue = account.known.find("q")
    account.known.dead_letter_queue(queue)
    account.queues["q"] = redrive("other")
    assert account.known.dead_letter_queue(queue).url == f"{HOME}/graves"
    account.clock.advance(POLICY_SECONDS)
    assert account.known.dead_letter_queue(queue).url == f"{HOME}/other"


def test_an_unreachable_queue_is_not_treated_as_one_without_a_policy() -> None:
    account = Account(q={})
    queue = account.known.find("q")
    account.api.answers = lambda operation, parameters: TemporaryError("away")
    with pytest.raises(TemporaryError, match="away"):
        account.known.dead_letter_queue(queue)


def test_bytes_max_is_the_queues_limit_or_that_of_older_queues() -> None:
    account = Account(q={"MaximumMessageSize": "1048576"}, old={})
    assert account.known.bytes_max(account.known.find("q")) == 1024 * 1024
    assert account.known.bytes_max(account.known.find("old")) == 256 * 1024
    account.readable = False
    account.clock.advance(POLICY_SECONDS)
    assert account.known.bytes_max(account.known.find("q")) == 256 * 1024


def test_the_suffix_finds_the_dead_letter_queue_whatever_its_real_name() -> None:
    account = Account(q=redrive("graves"), graves={})
    assert account.known.find("q-dlq").url == f"{HOME}/graves"
    with pytest.raises(QueueMissing):
        account.known.find("other-dlq")


def test_names_reads_all_pages() -> None:
    assert list(Account(c={}, a={}, b={}).known.names()) == ["a", "b", "c"]


def test_ensure_creates_queues_with_their_dead_letter_queues_and_policies() -> None:
    account = Account()
    account.known.ensure([QueueSettings(name="q", receives_max=7, retention_seconds=1.0), QueueSettings(name="r.fifo")])
    assert account.queues.keys() == {"q", "q-dlq", "q-dead", "r.fifo", "r-dlq.fifo", "r-dead.fifo"}
    assert json.loads(account.queues["q"]["RedrivePolicy"]) == {
        "deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:q-dlq",
        "maxReceiveCount": 7,
    }
    assert account.queues["q"]["MessageRetentionPeriod"] == "60"  # the minimum of SQS
    assert "RedrivePolicy" not in account.queues["r.fifo"]
    assert account.queues["r-dlq.fifo"]["FifoQueue"] == account.queues["r-dead.fifo"]["FifoQueue"] == "true"


def test_a_new_dlq_gets_the_largest_receive_count() -> None:
    account = Account()
    account.known.ensure([QueueSettings(name="q", receives_max=7)])
    assert json.loads(account.queues["q-dlq"]["RedrivePolicy"]) == {
        "deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:q-dead",
        "maxReceiveCount": 1_000,
    }
    assert "RedrivePolicy" not in account.queues["q-dead"]


def test_an_existing_dlq_gets_a_final_dlq_and_no_policy() -> None:
    account = Account(**{"q-dlq": {"QueueArn": "arn:aws:sqs:us-east-1:1:q-dlq"}})
    account.known.ensure([QueueSettings(name="q")])
    assert "q-dead" in account.queues
    assert "RedrivePolicy" not in account.queues["q-dlq"]


def test_an_existing_dlq_keeps_its_redrive_policy() -> None:
    account = Account(graves={}, **{"q-dlq": redrive("graves")})
    account.known.ensure([QueueSettings(name="q")])
    assert account.queues.keys() == {"q", "q-dlq", "graves"}
    assert account.known.dead_letter_name("q-dlq") == "graves"
    assert account.known.find("q-dead").url == f"{HOME}/graves"


@pytest.mark.parametrize(
    ("queue", "dead_letters"),
    [
        ("q", "q-dlq"),
        ("q-dlq", "q-dead"),
        ("q-dead", "q-dead"),
        ("q.fifo", "q-dlq.fifo"),
        ("q-dlq.fifo", "q-dead.fifo"),
        ("q.fifo-dlq", "q-dead.fifo"),
        ("q-dead.fifo", "q-dead.fifo"),
    ],
)
def test_dead_letter_names_are_valid_and_do_not_require_the_queues_to_exist(queue: str, dead_letters: str) -> None:
    existing: dict[str, dict[str, str]] = {valid_name(name): {} for name in (queue, dead_letters)}
    for account in (Account(), Account(**existing)):
        assert account.known.dead_letter_name(queue) == dead_letters
    found = Account(**existing).known
    assert found.dead_letter_queue(found.find(queue)).url == f"{HOME}/{dead_letters}"


def test_retention_is_returned_if_it_can_be_read() -> None:
    account = Account(q={"MessageRetentionPeriod": "3600"})
    assert account.known.retention_seconds("q") == 3_600
    assert account.known.retention_seconds("nope") is None
    account.readable = False
    account.clock.advance(POLICY_SECONDS)
    assert account.known.retention_seconds("q") is None


def test_receives_max_is_read_from_the_policy_and_raises_nothing() -> None:
    account = Account(q=redrive("graves"), plain={}, odd={"RedrivePolicy": '{"maxReceiveCount": "many"}'})
    arn = "arn:aws:sqs:us-east-1:1:"
    assert account.known.receives_max(f"{arn}q") == 5
    for name in ("plain", "odd", "nope"):
        assert account.known.receives_max(f"{arn}{name}") is None


def test_ensure_applies_the_settings_to_an_existing_queue() -> None:
    account = Account(
        q={"QueueArn": "arn:aws:sqs:us-east-1:1:q"}, graves={"QueueArn": "arn:aws:sqs:us-east-1:1:graves"}
    )
    account.known.ensure([QueueSettings(name="q", dead_letter_queue="graves", retention_seconds=3_600)])
    assert account.queues["q"]["MessageRetentionPeriod"] == "3600"
    assert json.loads(account.queues["q"]["RedrivePolicy"])["maxReceiveCount"] == 1_000
    assert "create_queue" not in account.api.operations()


@pytest.mark.parametrize("readable", [True, False])
def test_check_exists_needs_no_permission_to_read_attributes(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(q={})
    account.readable = readable
    monkeypatch.setattr(facts, "SqsApi", lambda *_, **__: account.api)
    inspector = facts.SqsInspector(Aws(), clock=account.clock)
    for existing in ("q", f"{HOME}/q"):
        inspector.check_exists(existing)
    for missing in ("nope", f"{HOME}/nope"):
        with pytest.raises(QueueMissing, match="There is no queue"):
            inspector.check_exists(missing)


def test_dead_letters_of_a_fifo_queue_are_found_by_its_url_and_arn() -> None:
    account = Account(**{"q__fifo": {}, "q-dlq__fifo": {}})
    for address in (f"{HOME}/q.fifo", "arn:aws:sqs:us-east-1:1:q.fifo"):
        assert account.known.find(f"{address}-dlq").url == f"{HOME}/q-dlq.fifo"
