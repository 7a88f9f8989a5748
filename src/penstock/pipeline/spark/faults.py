"""Classify Spark failures: `explain` maps every exception of a run to one Penstock error."""

import re
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from traceback import walk_tb
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException

from penstock.errors import (
    ConfigurationError,
    PenstockError,
    RestartNeeded,
    TableDenied,
    TableError,
    TableNowhere,
    TemporaryError,
    TransformError,
)
from penstock.messaging.failure import FailureDetails, location_in
from penstock.pipeline.engine import RunBroken
from penstock.pipeline.spark import jvm
from penstock.pipeline.spark.requirements import FOR_S3, REQUIRED

# Not listed: a crashed Python worker and an exhausted heap. An object can cause either, and is found only if its runs
# count as failed.
_MACHINERY = re.compile(r"No space left on device|Disk quota exceeded|Too many open files|Cannot allocate memory")
_SPARK_ENDED = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext is stopped|Java gateway process"
)
# From Spark Connect. The last one: a new server does not know the operation that an old one was running.
_SESSION_LOST = re.compile(
    r"\[INVALID_HANDLE\.SESSION_\w+\]|\[NO_ACTIVE_SESSION\]|\[SESSION_CLOSED\]|\[RESPONSE_ALREADY_RECEIVED\]"
)
_UNREACHABLE = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})  # statuses of gRPC
_REFUSED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
# Another client cancelled, or the server lost this client for a while. Penstock's own cancels are checked first.
_CANCELLED = re.compile(
    r"\[(?:OPERATION_CANCELED|INVALID_HANDLE\.OPERATION_\w+|SPARK_JOB_CANCELLED)\] [^.\n]*(?:\.[^.\n]*)?"
)
_GAVE_UP = "[RETRIES_EXCEEDED]"
_JVM_STACK = "\n\nJVM stacktrace:"  # Spark Connect appends this and a stack trace to every message
_RPC_DETAILS = re.compile(r"\A<_\w+ of RPC that terminated with:[^\0]*?\bdetails = \"(.*)\"$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"\A\((?:[\w$]+\.)+[\w$]+\) ")  # before the message, if PySpark has no class for the exception
# Raised by the reader in Spark's Python workers, during planning and in tasks; the driver gets them as text.
_OURS = {
    f"penstock.errors.{kind.__name__}": kind
    for kind in (TemporaryError, TableError, TableNowhere, TableDenied, ConfigurationError)
}
# Differs between occurrences of one failure: attempt ids, addresses, numbers, quoted values.
_VARIABLE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}|0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")

_TRACEBACK = re.compile(r"(Traceback \(most recent call last\):\n(?:[ \t].*\n)+)(\S.*)")
# The lines with which Python continues a traceback. One that follows other text is part of an exception's message.
_CHAINED = re.compile(
    r"(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n\Z"
)
_CHAINED_CHARS_MAX = 100
# Spark quotes values of rows in these messages: SQLSTATEs of data exceptions, of functions, and of raise_error.
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
_OF_DATA = re.compile(r"\bSQLSTATE: (?:2[123]\w{3}|39\w{3}|42K0B|P0\w{3})\b")
_OF_MACHINE = re.compile(r"(?:\w+\.)*(?:\w*OSError|\w*IOError|IOException|penstock\.errors\.\w+)")  # exceptions
_TRACEBACK_BEGINS = "Traceback (most recent call last):"
_NESTED = f"SerializationError: Caused by {_TRACEBACK_BEGINS}"  # PySpark's, whose message is the traceback of its cause

# Packages that tasks of Penstock import; another missing module is a matter of the user's transform.
_PACKAGES = frozenset({"penstock", *REQUIRED, *FOR_S3})
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_OTHER_VERSION = re.compile(
    r"^(?:[\w.]+: )?\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]*\d)", re.MULTILINE
)
# PySpark's own check: "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found."
_PYSPARK_REFUSES = re.compile(
    r"^(?:[\w.]+: )?\[(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\] (PyArrow|NumPy|pandas) >= ([\d.]*\d)",
    re.IGNORECASE | re.MULTILINE,
)
_NO_PROGRAM = re.compile(r'IOException: Cannot run program "([^"]+)"')

_PYTHON = Path(get_path("stdlib"))


def _rpc_errors() -> tuple[type[Exception], ...]:
    """Return gRPC's error if gRPC is installed; Spark Connect lets some through."""
    try:
        from grpc import RpcError
    except ImportError:
        return ()
    return (RpcError,)


SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, *jvm.PY4J_ERRORS, *_rpc_errors(), ConnectionError)
START_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, OSError)  # of a start, which also runs programs


def explain(error: Exception) -> PenstockError:
    """Map an exception that escaped from a Spark call to a Penstock error."""
    error = _last_failure(error)
    text = _text(error)
    status = _rpc_status(error)
    if status in _REFUSED:
        return ConfigurationError(f"The Spark Connect server refuses this client: {_first_line(text)}")
    quotes_data = _quotes_data(text)
    is_of_spark_itself = not (quotes_data or _TRACEBACK.search(text))
    if status in _UNREACHABLE or (is_of_spark_itself and _SESSION_LOST.search(text)):
        return RestartNeeded(
            "The Spark Connect server ended the session, or cannot be reached: "
            f"{_first_line(text).rstrip('.')}. Nothing is lost; run it again."
        )
    # A Python worker's traceback may quote any text, and Python workers never talk to the session.
    if jvm.is_cut(error) or (is_of_spark_itself and _SPARK_ENDED.search(text)):
        return RestartNeeded(
            f"Spark's JVM ended in the middle of a run: {_first_line(text)}. Nothing is lost; run it again."
        )
    if quotes_data:
        return _broken(text)
    if fault := python_fault(error):
        return ConfigurationError(
            f"A Python worker of Spark cannot run Penstock: {fault}. All hosts need the same Python and packages."
        )
    if is_of_spark_itself and (found := _CANCELLED.search(text)):
        return TemporaryError(f"Spark ended a run before it was done: {found.group().rstrip('. ')}")
    if found := _MACHINERY.search(_of_machine(text)):
        return TemporaryError(f"Spark could not finish a run: {found.group()}")
    name, _, message = _cause(text).partition(": ")
    if name in _OURS:
        return _OURS[name](message)
    if isinstance(error, (AnalysisException, ParseException)):
        return TransformError(f"Spark cannot plan what the transform returned: {_first_line(text)}")
    return _broken(text)


def connect_reason(error: Exception) -> str:
    """Return why a request to a Spark Connect server failed, without a full stop."""
    return _first_line(_text(_last_failure(error))).rstrip(".")


def is_of_spark(error: BaseException) -> bool:
    """Return False for a connection error from the user's own code, which is unrelated to Spark."""
    if not isinstance(error, ConnectionError):
        return isinstance(error, SPARK_ERRORS)
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)]
    raising = next((location for location in reversed(files) if not _is_of_python(location)), None)
    return raising is not None and not jvm.PACKAGES.isdisjoint(raising.parts)


def python_fault(error: Exception) -> str | None:
    """Return a description of the defect in the workers' Python; None if the error has another cause."""
    text = _without_message(_text(error))
    if found := _OTHER_VERSION.search(text):
        return f"they are Python {found[1]}, and the driver is another version"
    if (found := _NO_MODULE.search(text)) and found[1] in _PACKAGES:
        return f"they lack the package {found[1]}"
    if found := _PYSPARK_REFUSES.search(text):
        return f"they lack the package {found[1].lower()}, version {found[2]} or newer"
    if (found := _NO_PROGRAM.search(text)) and not _TRACEBACK.search(text):
        return f"the program {found[1]} cannot be started"
    return None


def _last_failure(error: Exception) -> Exception:
    """Return the failure of a request that Spark Connect repeated in vain, which Spark 4.0 wraps; else the error."""
    cause = error.__cause__
    return cause if str(error).startswith(_GAVE_UP) and isinstance(cause, Exception) else error


def _rpc_status(error: Exception) -> str:
    """Return the name of the gRPC status with which a request of Spark Connect failed; empty for other errors."""
    status: Any = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    return str(getattr(status(), "name", "")) if callable(status) else ""


def _is_of_python(location: Path) -> bool:
    return location.is_relative_to(_PYTHON) and "site-packages" not in location.parts


def _broken(text: str) -> RunBroken:
    """Return a failed run with the place in the user's code that raised, if the text has a Python traceback."""
    cause, found = _cause(text), _last_block(text)
    if found is None:
        return RunBroken(cause, fingerprint=_fingerprint(text))
    frames = found[1]
    location = location_in(frames)
    name, _, message = cause.partition(": ")
    return RunBroken(
        cause if location is None else f"{cause} ({location})",
        fingerprint=_fingerprint(text),
        raised=FailureDetails(error_type=name, error=message, traceback=f"{frames}{cause}\n"),
    )


def _text(error: Exception) -> str:
    """Return the messages of the error and its causes, deepest first; a failed write itself names no cause."""
    causes = jvm.java_causes(error)
    return "\n".join(reversed(list(_captured_causes(error) if causes is None else causes)))


def _captured_causes(error: BaseException | None) -> Iterator[str]:
    for _ in range(jvm.CAUSES_MAX):
        if error is None:
            return
        yield _message(error)
        error = getattr(error, "_cause", None)  # PySpark stores the converted Java cause there


def _message(error: BaseException) -> str:
    """Return the error's message without the parts that Spark Connect and gRPC add to it."""
    text = str(error).partition(_JVM_STACK)[0]
    details = _RPC_DETAILS.search(text)
    return _JAVA_CLASS.sub("", text if details is None else details[1])


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _cause(text: str) -> str:
    """Return the most specific line: the exception of the Python traceback, else Spark's first line."""
    block = _last_block(text)
    return _first_line(text) if block is None else block[2].strip()


def _last_block(text: str) -> re.Match[str] | None:
    """Return the last block of the Python traceback; None if there is none.

    Any other traceback after it is quoted in the message of its exception, or repeats it.
    """
    if _quotes_data(text):
        return None
    blocks = _TRACEBACK.finditer(text)
    last = next(blocks, None)
    for block in blocks:
        if not _CHAINED.search(text, max(0, block.start() - _CHAINED_CHARS_MAX), block.start()):
            break
        last = block
    return last


def _quotes_data(text: str) -> bool:
    """Return True for an error about values of rows, whose message quotes them.

    What it quotes, such as a line of a log, must not be mistaken for an error of Spark.
    """
    return _CONDITION.search(text.partition(_TRACEBACK_BEGINS)[0]) is not None and _OF_DATA.search(text) is not None


def _of_machine(text: str) -> str:
    """Return the part of an error that may name a fault of the machine: not the message of a user's exception."""
    cause = _cause(text)
    if _last_block(text) is None or _OF_MACHINE.fullmatch(cause.partition(": ")[0]):
        return text
    return ""


def _without_message(text: str) -> str:
    """Return the text without the further lines of the exception's message, which may quote a row."""
    block = _last_block(text)
    return text if block is None or block[2].endswith(_NESTED) else text[: block.end()]


def _fingerprint(text: str) -> str:
    return _VARIABLE.sub("?", _cause(text))[:200]
