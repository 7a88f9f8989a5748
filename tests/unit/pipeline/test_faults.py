"""The meaning of Spark's failures."""

import socket
import subprocess
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException

from penstock.errors import (
    ConfigurationError,
    RestartNeeded,
    TableDenied,
    TableError,
    TableNowhere,
    TemporaryError,
    TransformError,
)
from penstock.pipeline.engine import RunBroken
from penstock.pipeline.spark import jvm
from penstock.pipeline.spark.faults import explain, is_of_spark, python_fault

CAST = (
    '[CAST_INVALID_INPUT] The value \'{value}\' of the type "STRING" cannot be cast to "INT": malformed. '
    "SQLSTATE: 22018\n== DataFrame ==\n"
)
UDF = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "/somewhere/worker.py", line {line}, in main
    process()
ValueError: no good {line}
"""


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Py4JNetworkError("Answer from Java side is empty"), id="py4j"),
        pytest.param(Py4JError("An error occurred while calling o51.save"), id="py4j-call"),
        pytest.param(ConnectionRefusedError(111, "Connection refused"), id="socket"),
        pytest.param(PySparkException("Job 3 cancelled because SparkContext was shut down"), id="shut down"),
    ],
)
def test_a_dead_spark_needs_a_new_process(error: Exception) -> None:
    explained = explain(error)
    assert isinstance(explained, RestartNeeded)
    assert "Spark's JVM ended" in str(explained)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_missing_class_means_a_dead_spark_only_if_its_jvm_ended(
    has_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "END_SECONDS", 0.01)
    process = subprocess.Popen(["true" if has_ended else "cat"], stdin=subprocess.PIPE)
    try:
        if has_ended:
            process.wait()
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        explained = explain(Py4JError("PythonUtils does not exist in the JVM"))
    finally:
        process.communicate()
    assert isinstance(explained, RestartNeeded if has_ended else RunBroken)


FROM_LOGS = [
    "SparkContext was shut down",
    "Java gateway process exited",
    "No space left on device",
    "java.io.IOException: Too many open files",
    'java.io.IOException: Cannot run program "/opt/python": error=2',
    "[SESSION_CLOSED] The session was closed.",
    "[SPARK_JOB_CANCELLED] Job 3 cancelled",
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
    "first\nModuleNotFoundError: No module named 'numpy'",
    "first\nTraceback (most recent call last):\n  File x, line 1\nOSError: [Errno 28] No space left on device",
    "first\nTraceback (most recent call last):\n  File x, line 1\npenstock.errors.TemporaryError: try again",
]


@pytest.mark.parametrize("words", FROM_LOGS)
def test_an_error_text_in_the_data_is_not_mistaken_for_an_error_of_spark(words: str) -> None:
    """A user's exception, a cast and Spark's raise_error quote the row, which may be a line of any program's log."""
    raised = UDF.format(line=7).replace("no good 7", f"cannot parse the line: ERROR {words}")
    for text in (raised, CAST.format(value=words), f"[USER_RAISED_EXCEPTION] {words} SQLSTATE: P0001"):
        assert isinstance(explain(PySparkException(text)), RunBroken), text


def test_a_user_s_exception_is_named_although_its_message_quotes_a_traceback() -> None:
    quoted = "the line was:\nTraceback (most recent call last):\n  File x, line 1\nKeyError: 'quoted'"
    explained = explain(PySparkException(UDF.format(line=7).replace("no good 7", quoted)))
    assert isinstance(explained, RunBroken)
    assert str(explained) == "ValueError: the line was: (worker.py:7)"
    assert explained.raised is not None
    assert explained.raised.error_type == "ValueError"


@pytest.mark.parametrize("words", ["[Errno 28] No space left on device", "[Errno 24] Too many open files"])
def test_a_full_machine_of_a_python_worker_is_a_temporary_error(words: str) -> None:
    text = UDF.format(line=7).replace("ValueError: no good 7", f"OSError: {words}")
    assert isinstance(explain(PySparkException(text)), TemporaryError)


def test_a_connection_error_of_user_code_is_not_of_spark() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionError) as refused:
        socket.create_connection(("127.0.0.1", port))
    assert not is_of_spark(refused.value)


def test_a_connection_error_of_py4j_is_of_spark() -> None:
    with pytest.raises(ConnectionError) as cut:
        exec(compile("raise ConnectionResetError", "/env/site-packages/py4j/clientserver.py", "exec"))
    assert is_of_spark(cut.value)


def test_a_call_that_the_jvm_refuses_does_not_mean_a_dead_spark() -> None:
    text = "An error occurred while calling o51.nope. Trace:\npy4j.Py4JException: Method nope([]) does not exist\n"
    assert isinstance(explain(Py4JError(text)), RunBroken)


@pytest.mark.parametrize("text", ["java.io.IOException: No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_a_temporary_error(text: str) -> None:
    assert isinstance(explain(PySparkException(f"Task failed: {text}")), TemporaryError)


OURS = """Error from Python worker:
Traceback (most recent call last):
  File "/somewhere/datasource.py", line 70, in read
    fetch()
OSError: [Errno 5] Input/output error

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/somewhere/worker.py", line 70, in main
    process()
penstock.errors.{name}: s3://lake/x cannot be used: try again.
"""


@pytest.mark.parametrize("spark_s", [PySparkException, AnalysisException])
@pytest.mark.parametrize("ours", [TemporaryError, TableError, TableNowhere, TableDenied, ConfigurationError])
def test_an_error_of_the_reader_in_a_spark_worker_keeps_its_type_and_text(
    spark_s: type[PySparkException], ours: type[Exception]
) -> None:
    explained = explain(spark_s(OURS.format(name=ours.__name__)))
    assert (type(explained), str(explained)) == (ours, "s3://lake/x cannot be used: try again.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Traceback (most recent call last):\n  x\nModuleNotFoundError: No module named 'penstock'\n",
            "package penstock",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow.parquet'", "package pyarrow"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "Python 3.9",
        ),
        (
            (
                "Traceback (most recent call last):\n  x\npyspark.errors.exceptions.base.PySparkRuntimeError: "
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11"
            ),
            "Python 3.9",
        ),
        (
            (
                "Traceback (most recent call last):\n  x\npyspark.serializers.SerializationError: Caused by Traceback "
                "(most recent call last):\n  x\nModuleNotFoundError: No module named 'penstock'\n"
            ),
            "package penstock",
        ),
        ('java.io.IOException: Cannot run program "/opt/python": error=2', "/opt/python cannot be started"),
    ],
)
@pytest.mark.parametrize("spark_s", [PySparkException, AnalysisException])
def test_workers_that_cannot_run_penstock_are_a_configuration_error(
    spark_s: type[PySparkException], text: str, words: str
) -> None:
    explained = explain(spark_s(text))
    assert isinstance(explained, ConfigurationError)
    assert words in str(explained)


def test_a_module_missing_in_user_code_is_not_a_configuration_error() -> None:
    text = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'shop'\n"
    assert isinstance(explain(PySparkException(text)), RunBroken)


def test_a_query_that_spark_cannot_plan_is_a_transform_error() -> None:
    explained = explain(AnalysisException("[UNRESOLVED_COLUMN] A column with name `nope` cannot be resolved."))
    assert isinstance(explained, TransformError)
    assert "`nope`" in str(explained)


@pytest.mark.parametrize(
    "text",
    [
        CAST.format(value="abc"),
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_a_failure_that_the_data_may_have_caused_is_a_broken_run(text: str) -> None:
    assert isinstance(explain(PySparkException(text)), RunBroken)


def test_only_equal_causes_have_equal_fingerprints() -> None:
    def fingerprint(text: str) -> str:
        explained = explain(PySparkException(text))
        assert isinstance(explained, RunBroken)
        return explained.fingerprint

    assert fingerprint(UDF.format(line=17)) == fingerprint(UDF.format(line=4))
    assert fingerprint(CAST.format(value="a")) == fingerprint(CAST.format(value="b"))
    assert fingerprint(UDF.format(line=17)) != fingerprint(CAST.format(value="a"))


def test_the_message_is_the_last_line_of_the_python_traceback() -> None:
    assert str(explain(PySparkException(UDF.format(line=17)))) == "ValueError: no good 17 (worker.py:17)"


IN_A_UDF = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1225, in main
    process()
  File "/jobs/clean.py", line 8, in ratio
    return helper(v)
  File "/jobs/penstock-demo/math_helpers.py", line 3, in helper
    return 1.0 / v
  File "/usr/lib/python3.11/fractions.py", line 99, in __truediv__
    raise ZeroDivisionError
ZeroDivisionError: float division by zero
"""


def test_an_exception_of_a_udf_has_its_location_and_traceback() -> None:
    explained = explain(PySparkException(IN_A_UDF))
    assert isinstance(explained, RunBroken)
    assert str(explained) == "ZeroDivisionError: float division by zero (math_helpers.py:3)"
    assert explained.raised is not None
    assert (explained.raised.error_type, explained.raised.error) == ("ZeroDivisionError", "float division by zero")
    assert explained.raised.traceback.startswith("Traceback (most recent call last):\n")
    assert explained.raised.traceback.endswith("ZeroDivisionError: float division by zero\n")


def test_an_exception_without_a_python_traceback_has_no_location() -> None:
    explained = explain(PySparkException("Job aborted"))
    assert isinstance(explained, RunBroken)
    assert (str(explained), explained.raised) == ("Job aborted", None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
            "they lack the package pyarrow, version 18.0.0 or newer",
        ),
        (
            "[UNSUPPORTED_PACKAGE_VERSION] PyArrow >= 18.0.0 must be installed; however, your version is 11.0.0.",
            "they lack the package pyarrow, version 18.0.0 or newer",
        ),
    ],
)
def test_a_package_that_pyspark_itself_misses_is_a_fault_of_the_workers_python(text: str, fault: str) -> None:
    traceback = UDF.format(line=1).replace("ValueError: no good 1", f"Error: {text}")
    assert python_fault(PySparkException(traceback)) == fault
