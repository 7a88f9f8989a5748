"""Classification of boto3's errors: only a person can fix them, temporary, or of unknown outcome."""

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
    """An API whose calls raise the given errors in turn; None is a successful call."""

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
    """Make one call per item and return the error of the last one. All others must succeed."""
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
def test_a_denied_call_names_the_missing_permission(error: Exception) -> None:
    for operation, permission in (
        (RECEIVE, "sqs:ReceiveMessage"),
        (SEND, "sqs:SendMessage"),
        (DELETE, "sqs:DeleteMessage"),
    ):
        denial = raised(operation, error)
        assert isinstance(denial, ConfigurationError)
        assert permission in str(denial)
        assert "'q'" in str(denial)
        assert URL in str(denial)


def test_a_denial_after_a_permitted_call_is_temporary() -> None:
    assert isinstance(raised(RECEIVE, None, client_error("AccessDenied", status=403)), TemporaryError)
    assert isinstance(raised(RECEIVE, None, NoCredentialsError()), TemporaryError)


def test_missing_credentials_have_the_same_message_as_for_s3() -> None:
    assert str(raised(RECEIVE, NoCredentialsError())) == NO_CREDENTIALS


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException"])
def test_expired_credentials_are_reported_in_our_own_words(code: str) -> None:
    error = raised(RECEIVE, client_error(code, status=403))
    assert str(error) == f"sqs:ReceiveMessage for the queue 'q' at {URL}: the credentials have expired; get new ones"


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
def test_the_body_of_an_error_response_is_not_part_of_the_message(operation: str, error: Exception, words: str) -> None:
    message = str(raised(operation, error))
    assert f"at {URL}: {words}" in message
    assert not any(part in message for part in ("<", "An error occurred"))


def test_permission_to_receive_does_not_imply_permission_to_delete() -> None:
    api = Scripted(None, client_error("AccessDenied", status=403))
    api.on(Q, RECEIVE)
    with pytest.raises(ConfigurationError, match="sqs:DeleteMessage"):
        api.on(Q, DELETE)


@pytest.mark.parametrize("error", [client_error("InvalidSignatureException"), NoCredentialsError()])
def test_an_identity_error_after_any_permitted_call_is_temporary(error: Exception) -> None:
    """A host wakes up with a stopped clock, or the keys of its role arrive late: no reason for a worker to stop."""
    api = Scripted(None, error)
    api.on(Q, RECEIVE)
    with pytest.raises(TemporaryError, match="refuses sqs:DeleteMessage"):
        api.on(Q, DELETE)


def test_a_missing_queue_is_named() -> None:
    error = raised(RECEIVE, client_error("QueueDoesNotExist"))
    assert isinstance(error, QueueMissing)
    assert str(error).startswith("There is no queue 'q' at http://127.0.0.1:1; create it")
    assert isinstance(raised(RECEIVE, client_error("AWS.SimpleQueueService.NonExistentQueue")), QueueMissing)


def test_a_queue_missing_after_a_successful_call_is_a_temporary_error() -> None:
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
def test_a_transient_error_is_temporary(error: Exception) -> None:
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
def test_only_a_send_without_a_response_has_an_unknown_outcome(error: Exception) -> None:
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
def test_the_outcome_of_a_send_that_was_not_executed_is_known(error: Exception) -> None:
    assert not isinstance(raised(SEND, error), UnknownOutcome)


def test_a_queue_deleted_while_in_use_is_a_temporary_error_for_other_operations_too() -> None:
    api = Scripted(None, client_error("QueueDoesNotExist"))
    api.on(Q, RECEIVE)
    with pytest.raises(TemporaryError, match="was deleted"):
        api.on(Q, DELETE)


def test_a_send_or_lookup_that_sqs_never_accepts_is_a_configuration_error() -> None:
    assert isinstance(raised(SEND, client_error("InvalidMessageContents")), ConfigurationError)
    assert isinstance(raised("get_queue_url", client_error("InvalidParameterValue")), ConfigurationError)
    assert isinstance(raised(DELETE, client_error("InvalidParameterValue")), TemporaryError)


def test_invalid_client_settings_raise_a_configuration_error() -> None:
    assert isinstance(raised(RECEIVE, NoRegionError()), ConfigurationError)
    assert isinstance(raised(RECEIVE, ParamValidationError(report="x")), ConfigurationError)


def test_a_closed_api_makes_no_call() -> None:
    api = Scripted()
    api.close()
    with pytest.raises(TemporaryError, match="closed"):
        api.on(Q, RECEIVE)


def test_receives_and_sends_are_not_retried_and_read_timeouts_exceed_the_poll() -> None:
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
