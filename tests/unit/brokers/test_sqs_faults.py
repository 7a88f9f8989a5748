"""What boto3's errors mean: to be mended by a person, passing by themselves, or of unknown outcome."""

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    ReadTimeoutError,
)
from tests.unit.brokers.sqs_doubles import Q, client_error

from penstock.brokers.sqs.client import SqsApi
from penstock.errors import ConfigurationError, PenstockError, QueueMissing, TemporaryError, UnknownOutcome
from penstock.storage.aws import NO_CREDENTIALS, Aws

URL = "http://127.0.0.1:1"
RECEIVE, SEND, DELETE = "receive_message", "send_message_batch", "delete_message_batch"


def answered(status: int) -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPStatusCode": status}}


class Scripted(SqsApi):
    """Whose clients raise what the test says."""

    def __init__(self, *errors: Exception | None) -> None:
        super().__init__(Aws(region="us-east-1", endpoint_url=URL), pollers=1, poll_seconds=1)
        self._errors = list(errors)

    def _client_for(self, operation: str) -> object:
        api = self

        class Client:
            def __getattr__(self, name: str) -> object:
                def call(**parameters: object) -> object:
                    error = api._errors.pop(0)
                    if error is not None:
                        raise error
                    return {}

                return call

        return Client()


def raised(operation: str, *errors: Exception | None) -> PenstockError:
    """What the last of these calls came to; those before it are to succeed."""
    api = Scripted(*errors)
    for _ in errors[:-1]:
        api.on(Q, operation)
    with pytest.raises(PenstockError) as caught:
        api.on(Q, operation)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        client_error("AccessDenied", status=403),
        client_error("AccessDeniedException"),
        client_error("InvalidClientTokenId", status=403),
        client_error("SignatureDoesNotMatch", status=403),
        client_error("KmsAccessDenied"),
    ],
    ids=str,
)
def test_who_is_not_let_in_is_told_which_right_is_missing(error: Exception) -> None:
    for operation, right in ((RECEIVE, "sqs:ReceiveMessage"), (SEND, "sqs:SendMessage"), (DELETE, "sqs:DeleteMessage")):
        told = raised(operation, error)
        assert isinstance(told, ConfigurationError)
        assert right in str(told)
        assert "'q'" in str(told)
        assert URL in str(told)


def test_who_was_let_in_before_waits_until_the_rights_are_back() -> None:
    assert isinstance(raised(RECEIVE, None, client_error("AccessDenied", status=403)), TemporaryError)
    assert isinstance(raised(RECEIVE, None, NoCredentialsError()), TemporaryError)


def test_without_credentials_the_sentence_is_that_of_s3() -> None:
    assert str(raised(RECEIVE, NoCredentialsError())) == NO_CREDENTIALS


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException"])
def test_expired_credentials_are_said_in_our_words(code: str) -> None:
    told = raised(RECEIVE, client_error(code, status=403))
    assert str(told) == f"sqs:ReceiveMessage for the queue 'q' at {URL}: the credentials have expired; get new ones"


PAGE = "<html><body>Bad gateway</body></html>"


@pytest.mark.parametrize("operation", [RECEIVE, SEND])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ClientError({"Error": {"Code": "502", "Message": PAGE}, **answered(502)}, "X"), "it answers 502"),
        (ClientError({"Error": {"Code": "407", "Message": PAGE}, **answered(407)}, "X"), "it answers 407"),
        (client_error("InternalError", status=500), "it answers 500 InternalError"),
    ],
)
def test_a_body_is_never_passed_through(operation: str, error: Exception, words: str) -> None:
    told = str(raised(operation, error))
    assert f"at {URL}: {words}" in told
    assert not any(part in told for part in ("<", "An error occurred"))


def test_a_right_to_receive_is_none_to_delete() -> None:
    api = Scripted(None, client_error("AccessDenied", status=403))
    api.on(Q, RECEIVE)
    with pytest.raises(ConfigurationError, match="sqs:DeleteMessage"):
        api.on(Q, DELETE)


@pytest.mark.parametrize("error", [client_error("InvalidSignatureException"), NoCredentialsError()])
def test_who_we_are_is_no_matter_of_what_is_asked_for(error: Exception) -> None:
    """As when a host wakes up whose clock stood still, or its role's keys are late: no reason to end."""
    api = Scripted(None, error)
    api.on(Q, RECEIVE)
    with pytest.raises(TemporaryError, match="refuses sqs:DeleteMessage"):
        api.on(Q, DELETE)


def test_a_queue_that_is_not_there_is_named() -> None:
    told = raised(RECEIVE, client_error("QueueDoesNotExist"))
    assert isinstance(told, QueueMissing)
    assert str(told).startswith("There is no queue 'q' at http://127.0.0.1:1; create it")
    assert isinstance(raised(RECEIVE, client_error("AWS.SimpleQueueService.NonExistentQueue")), QueueMissing)


def test_a_queue_that_was_there_may_come_back() -> None:
    assert isinstance(raised(RECEIVE, None, client_error("QueueDoesNotExist")), TemporaryError)


@pytest.mark.parametrize(
    "error",
    [
        client_error("RequestThrottled"),
        client_error("ThrottlingException"),
        client_error("OverLimit"),
        client_error("ServiceUnavailable", status=503),
        client_error("ExpiredToken", status=403),
        client_error("ExpiredTokenException"),
        EndpointConnectionError(endpoint_url=URL),
        ConnectTimeoutError(endpoint_url=URL),
        CredentialRetrievalError(provider="x", error_msg="away"),
    ],
    ids=str,
)
def test_what_passes_by_itself_is_temporary(error: Exception) -> None:
    for operation in (RECEIVE, DELETE):
        assert isinstance(raised(operation, error), TemporaryError)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionClosedError(endpoint_url=URL),
        ReadTimeoutError(endpoint_url=URL),
        client_error("InternalError", status=500),
    ],
    ids=str,
)
def test_a_send_whose_answer_never_came_is_of_unknown_outcome_and_all_else_is_asked_again(error: Exception) -> None:
    assert isinstance(raised(SEND, error), UnknownOutcome)
    for operation in (RECEIVE, DELETE):
        assert not isinstance(raised(operation, error), UnknownOutcome)
        assert isinstance(raised(operation, error), TemporaryError)


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url=URL),
        ConnectTimeoutError(endpoint_url=URL),
        client_error("RequestThrottled"),
        client_error("ServiceUnavailable", status=503),
    ],
    ids=str,
)
def test_a_send_that_never_arrived_is_not(error: Exception) -> None:
    assert not isinstance(raised(SEND, error), UnknownOutcome)


def test_a_queue_that_is_deleted_under_a_worker_ends_it_at_no_operation() -> None:
    api = Scripted(None, client_error("QueueDoesNotExist"))
    api.on(Q, RECEIVE)
    with pytest.raises(TemporaryError, match="was deleted"):
        api.on(Q, DELETE)


def test_what_sqs_never_takes_is_no_fault_that_passes() -> None:
    assert isinstance(raised(SEND, client_error("InvalidMessageContents")), ConfigurationError)
    assert isinstance(raised("get_queue_url", client_error("InvalidParameterValue")), ConfigurationError)
    assert isinstance(raised(DELETE, client_error("InvalidParameterValue")), TemporaryError)


def test_settings_that_cannot_be_are_said() -> None:
    assert isinstance(raised(RECEIVE, NoRegionError()), ConfigurationError)
    assert isinstance(raised(RECEIVE, ParamValidationError(report="x")), ConfigurationError)


def test_nothing_is_asked_after_the_closing() -> None:
    api = Scripted()
    api.close()
    with pytest.raises(TemporaryError, match="closed"):
        api.on(Q, RECEIVE)


def test_receives_and_sends_are_asked_once_and_waits_are_longer_than_polls() -> None:
    api = SqsApi(Aws(region="us-east-1", endpoint_url=URL), pollers=5, poll_seconds=20)
    configs = {name: api._config(name) for name in ("receive", "send", "control")}
    assert {name: config.retries["total_max_attempts"] for name, config in configs.items()} == {
        "receive": 1,
        "send": 1,
        "control": 3,
    }
    assert {config.retries["mode"] for config in configs.values()} == {"standard"}
    assert configs["receive"].read_timeout > 20
    assert configs["receive"].max_pool_connections >= 5
