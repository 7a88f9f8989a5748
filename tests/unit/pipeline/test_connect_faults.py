"""The meaning of Spark Connect's failures. Their texts are those of a real server and client, Spark 4.3."""

import logging
import os

import pytest
from grpc import RpcError, StatusCode
from pyspark.errors import PySparkException, PySparkRuntimeError, PySparkValueError
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    PythonException,
    SparkConnectException,
    SparkConnectGrpcException,
    UnknownException,
)

from penstock.errors import ConfigurationError, RestartNeeded, TemporaryError, TransformError
from penstock.pipeline.engine import RunBroken
from penstock.pipeline.spark import connect
from penstock.pipeline.spark.conf import QUERY_LOGGERS
from penstock.pipeline.spark.connect import place_of, without_parameters
from penstock.pipeline.spark.faults import connect_reason, explain

CANNOT_CONNECT = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:15002: Failed to connect to remote host: "
    "Connection refused"
)
UNAVAILABLE = (
    "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
    f'\tdetails = "{CANNOT_CONNECT}"\n\tdebug_error_string = "UNAVAILABLE:{CANNOT_CONNECT}"\n>'
)
STACK = (
    "\n\nJVM stacktrace:\norg.apache.spark.SparkSQLException\n\tat "
    "org.apache.spark.sql.connect.execution.ExecuteThreadRunner$ExecutionThread.run(ExecuteThreadRunner.scala:341)"
)
CLOSED = (
    "(org.apache.spark.SparkSQLException) [INVALID_HANDLE.SESSION_CLOSED] The handle "
    "aed6fe92-7379-40a3-bb40-5bce46ab436b is invalid. Session was closed. SQLSTATE: 08003"
)
CHANGED = (
    "(org.apache.spark.SparkSQLException) [INVALID_HANDLE.SESSION_CHANGED] The handle "
    "aed6fe92-7379-40a3-bb40-5bce46ab436b is invalid. The existing Spark server driver instance has restarted. Please "
    "reconnect. SQLSTATE: HY000"
)
CANCELED = "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"
ABANDONED = (
    "(org.apache.spark.SparkSQLException) [INVALID_HANDLE.OPERATION_ABANDONED] The handle "
    "5b4a0f1c-2f3e-4d9a-8a52-1f0e5c1b7a10 is invalid. Operation was considered abandoned because of inactivity and "
    "removed. SQLSTATE: HY000"
)
UDF = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "/app/transforms.py", line 21, in boom
    raise ValueError("no good")
ValueError: [OPERATION_CANCELED] StatusCode.UNAVAILABLE [NO_ACTIVE_SESSION]
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(
            SparkConnectGrpcException(UNAVAILABLE, grpc_status_code=StatusCode.UNAVAILABLE), CANNOT_CONNECT, id="gone"
        ),
        pytest.param(
            SparkConnectGrpcException("deadline", grpc_status_code=StatusCode.DEADLINE_EXCEEDED),
            "deadline",
            id="no answer",
        ),
        pytest.param(UnknownException(message=CLOSED), "[INVALID_HANDLE.SESSION_CLOSED] The handle", id="closed"),
        pytest.param(UnknownException(message=CHANGED + STACK), "[INVALID_HANDLE.SESSION_CHANGED]", id="restarted"),
        pytest.param(
            SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
            "[NO_ACTIVE_SESSION] No active Spark session found",
            id="stopped",
        ),
        pytest.param(
            PySparkRuntimeError(
                errorClass="RESPONSE_ALREADY_RECEIVED",
                messageParameters={"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"},
            ),
            "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND",
            id="restarted in a stream",
        ),
    ],
)
def test_a_lost_server_or_session_needs_a_new_process(error: Exception, reason: str) -> None:
    explained = explain(error)
    assert isinstance(explained, RestartNeeded)
    begin = f"The Spark Connect server ended the session, or cannot be reached: {reason}"
    assert str(explained).startswith(begin)
    assert str(explained).endswith(". Nothing is lost; run it again.")
    assert ".." not in str(explained)
    assert "\n" not in str(explained)


class RefusedError(RpcError):  # type: ignore[misc] # gRPC has no types
    """The error of a refused connection, as gRPC raises it."""

    def code(self) -> StatusCode:
        return StatusCode.UNAVAILABLE

    def __str__(self) -> str:
        return UNAVAILABLE


def test_the_failure_that_spark_4_0_wraps_is_the_reason() -> None:
    gave_up = PySparkException("[RETRIES_EXCEEDED] The maximum number of retries has been exceeded.")
    gave_up.__cause__ = RefusedError()
    assert connect_reason(gave_up) == CANNOT_CONNECT
    assert isinstance(explain(gave_up), RestartNeeded)


def test_an_impossible_address_leaves_environment_and_loggers_as_they_were() -> None:
    environment = dict(os.environ)
    levels = [logging.getLogger(name).level for name in QUERY_LOGGERS]
    assert connect.MODE not in environment

    with pytest.raises(ConfigurationError, match="No session could be opened at sc:"):
        connect.open_session("sc://", {})

    assert dict(os.environ) == environment
    assert [logging.getLogger(name).level for name in QUERY_LOGGERS] == levels


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CANCELED + STACK, "[OPERATION_CANCELED] Operation has been canceled"),
        (ABANDONED, "Operation was considered abandoned because of inactivity and removed"),
    ],
)
def test_an_operation_that_was_cancelled_elsewhere_is_tried_again(text: str, words: str) -> None:
    explained = explain(UnknownException(message=text))
    assert type(explained) is TemporaryError
    assert words in str(explained)
    assert "JVM" not in str(explained)


def test_a_client_that_may_not_connect_has_to_be_configured() -> None:
    error = SparkConnectGrpcException("Invalid authentication token", grpc_status_code=StatusCode.UNAUTHENTICATED)
    explained = explain(error)
    assert isinstance(explained, ConfigurationError)
    assert str(explained) == "The Spark Connect server refuses this client: Invalid authentication token"


def test_the_stack_of_the_server_is_left_out() -> None:
    text = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column named `nope` cannot be resolved. SQLSTATE: 42703"
    explained = explain(AnalysisException(message=text + STACK))
    assert isinstance(explained, TransformError)
    assert str(explained) == f"Spark cannot plan what the transform returned: {text}"


def test_words_of_spark_in_a_users_error_mean_nothing() -> None:
    explained = explain(PythonException(message=UDF + STACK))
    assert isinstance(explained, RunBroken)
    assert str(explained).startswith("ValueError: [OPERATION_CANCELED]")
    assert "JVM" not in str(explained)


def test_the_reason_of_a_failed_request_is_one_line() -> None:
    error = SparkConnectGrpcException(UNAVAILABLE, grpc_status_code=StatusCode.UNAVAILABLE)
    assert connect_reason(error) == CANNOT_CONNECT
    assert connect_reason(PySparkException("one.\ntwo")) == "one"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("sc://spark:15002", "sc://spark:15002"),
        ("sc://spark:15002/", "sc://spark:15002"),
        ("sc://spark:15002/;token=secret;user_id=ann", "sc://spark:15002"),
        ("sc://spark;token=secret", "sc://spark"),
    ],
)
def test_an_address_is_shown_without_its_parameters(address: str, place: str) -> None:
    assert place_of(address) == place


def test_a_text_about_an_address_shows_no_token() -> None:
    error = PySparkValueError(
        errorClass="INVALID_CONNECT_URL",
        messageParameters={"detail": "Hostname is missing in the URL: 'http://:15002/;user_id=ann;token=secret'."},
    )
    shown = without_parameters(connect_reason(error), "sc://:15002/;user_id=ann;token=secret")
    assert "'http://:15002/;user_id=...;token=...'" in shown
