"""Classify Spark failures: `explain` maps every exception of a run to one Penstock error."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from traceback import walk_tb
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
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
from penstock.messaging.failure import FailureDetails as Raised
from penstock.messaging.failure import location_in
from penstock.pipeline.engine import RunBroken

# Not listed: a crashed Python worker and an exhausted heap. An object can cause either, and is found only if its runs
# count as failed.
_MACHINERY = re.compile(r"No space left on device|Disk quota exceeded|Too many open files|Cannot allocate memory")
_SPARK_ENDED = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext is stopped|Java gateway process"
)
_BROKEN_OFF = re.compile(r"An error occurred while calling \S+")
_NOT_FOUND = re.compile(r"\S+ does not exist in the JVM")
JVM_EXIT_SECONDS = 1.0
# Raised by the reader in Spark's Python workers, during planning and in tasks; the driver gets them as text.
_OURS = {
    f"penstock.errors.{kind.__name__}": kind
    for kind in (TemporaryError, TableError, TableNowhere, TableDenied, ConfigurationError)
}
# Differs between occurrences of one failure: attempt ids, addresses, numbers, quoted values.
_VARIABLE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}|0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")

_TRACEBACK = re.compile(r"(Traceback \(most recent call last\):\n(?:[ \t].*\n)+)(\S.*)")

# No Penstock task runs without these packages; a missing module of the user's can have other reasons.
_PACKAGES = frozenset({"penstock", "pyarrow", "numpy", "zstandard", "obstore", "boto3"})
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_OTHER_VERSION = re.compile(r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]*\d)")
_NO_PROGRAM = re.compile(r'IOException: Cannot run program "([^"]+)"')

CAUSES_MAX = 10

_PYTHON = Path(get_path("stdlib"))
_SPARKS = frozenset({"py4j", "pyspark"})  # packages that talk to the JVM

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)


def explain(error: Exception) -> PenstockError:
    """Map an exception that escaped from a Spark call to a Penstock error."""
    text = _text(error)
    # A Python worker's traceback may quote any text, and Python workers never talk to the session.
    if _is_cut(error) or (_SPARK_ENDED.search(text) and not _TRACEBACK.search(text)):
        return RestartNeeded(
            f"Spark's JVM ended in the middle of a run: {_first_line(text)}. Nothing is lost; run it again."
        )
    if fault := python_fault(error):
        return ConfigurationError(
            f"A Python worker of Spark cannot run Penstock: {fault}. All hosts need the same Python and packages."
        )
    if found := _MACHINERY.search(text):
        return TemporaryError(f"Spark could not finish a run: {found.group()}")
    name, _, message = _cause(text).partition(": ")
    if name in _OURS:
        return _OURS[name](message)
    if isinstance(error, (AnalysisException, ParseException)):
        return TransformError(f"Spark cannot plan what the transform returned: {_first_line(text)}")
    return _broken(text)


def is_of_spark(error: BaseException) -> bool:
    """Return False for a connection error from the user's own code, which is unrelated to Spark."""
    if not isinstance(error, ConnectionError):
        return isinstance(error, SPARK_ERRORS)
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)]
    raising = next((location for location in reversed(files) if not _is_of_python(location)), None)
    return raising is not None and not _SPARKS.isdisjoint(raising.parts)


def python_fault(error: Exception) -> str | None:
    """Return a description of the defect in the workers' Python; None if the error has another cause."""
    text = _text(error)
    if found := _OTHER_VERSION.search(text):
        return f"they are Python {found[1]}, and the driver is another version"
    if (found := _NO_MODULE.search(text)) and found[1] in _PACKAGES:
        return f"they lack the package {found[1]}"
    if found := _NO_PROGRAM.search(text):
        return f"the program {found[1]} cannot be started"
    return None


def _is_cut(error: Exception) -> bool:
    """Return True if the connection to the JVM broke.

    For a call cut off midway Py4J reports only the call's name, and for a lookup that the class does not exist, which
    may as well be a typo of the user's. An error from the JVM itself carries a stack trace or a Java exception.
    """
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    if type(error) is not Py4JError:
        return False
    text = str(error)
    return _BROKEN_OFF.fullmatch(text) is not None or (_NOT_FOUND.fullmatch(text) is not None and _has_jvm_ended())


def _has_jvm_ended() -> bool:
    """Return True if the JVM that this process launched has ended. Its sockets close a moment before it exits."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(JVM_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_of_python(location: Path) -> bool:
    return location.is_relative_to(_PYTHON) and "site-packages" not in location.parts


def _broken(text: str) -> RunBroken:
    """Return a failed run with the place in the user's code that raised, if the text has a Python traceback."""
    cause, found = _cause(text), _TRACEBACK.findall(text)
    if not found:
        return RunBroken(cause, fingerprint=_fingerprint(text))
    frames = found[-1][0]
    location = location_in(frames)
    name, _, message = cause.partition(": ")
    return RunBroken(
        cause if location is None else f"{cause} ({location})",
        fingerprint=_fingerprint(text),
        raised=Raised(error_type=name, error=message, traceback=f"{frames}{cause}\n"),
    )


def _text(error: Exception) -> str:
    """Return the messages of the error and its causes, deepest first; a failed write itself names no cause."""
    if isinstance(error, Py4JJavaError):
        return "\n".join(reversed(list(_java_causes(error.java_exception))))
    return "\n".join(reversed(list(_captured_causes(error))))


def _java_causes(throwable: Any) -> Iterator[str]:
    for _ in range(CAUSES_MAX):
        if throwable is None:
            return
        yield str(throwable)
        throwable = throwable.getCause()


def _captured_causes(error: BaseException | None) -> Iterator[str]:
    for _ in range(CAUSES_MAX):
        if error is None:
            return
        yield str(error)
        error = getattr(error, "_cause", None)  # PySpark stores the converted Java cause there


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _cause(text: str) -> str:
    """Return the most specific line: the last line of the last Python traceback, else Spark's first line."""
    blocks = _TRACEBACK.findall(text)
    return str(blocks[-1][1]).strip() if blocks else _first_line(text)


def _fingerprint(text: str) -> str:
    return _VARIABLE.sub("?", _cause(text))[:200]
