"""What a failure of Spark means: one function maps every exception of a run to one error of ours."""

import re
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from traceback import walk_tb
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
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
from penstock.messaging.failure import place_in
from penstock.pipeline.engine import RunBroken

# A Python worker that crashed and a heap that ran out are not among these: an object can bring that about, and is found
# only when its runs count as failed.
_MACHINERY = re.compile(r"No space left on device|Disk quota exceeded|Too many open files|Cannot allocate memory")
_SPARK_GONE = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext is stopped|Java gateway process"
)
_BROKEN_OFF = re.compile(r"An error occurred while calling \S+")
# Raised by the reader in Spark's Python workers, when it is planned as well as in its tasks; they come back as text.
_OURS = {
    f"penstock.errors.{kind.__name__}": kind
    for kind in (TemporaryError, TableError, TableNowhere, TableDenied, ConfigurationError)
}
# What differs between equal failures: attempt ids, addresses, numbers, quoted values.
_VARIABLE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}|0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")

_TRACEBACK = re.compile(r"(Traceback \(most recent call last\):\n(?:[ \t].*\n)+)(\S.*)")

# Packages without which no task of ours can run; a module of the user's may be missing for other reasons.
_PACKAGES = frozenset({"penstock", "pyarrow", "numpy", "zstandard", "obstore", "boto3"})
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_OTHER_VERSION = re.compile(r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]*\d)")
_NO_PROGRAM = re.compile(r'IOException: Cannot run program "([^"]+)"')

CAUSES_MAX = 10

_PYTHON = Path(get_path("stdlib"))
_SPARKS = frozenset({"py4j", "pyspark"})  # packages that speak to the JVM

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)


def explain(error: Exception) -> PenstockError:
    """The meaning of an exception that escaped from a Spark call."""
    text = _text(error)
    # What a Python worker raised may quote anything, and none speaks to the session.
    if _is_cut(error) or (_SPARK_GONE.search(text) and not _TRACEBACK.search(text)):
        return RestartNeeded(
            f"Spark went away in the middle of a run: {_first_line(text)}. Nothing is lost; run it again."
        )
    if fault := python_fault(error):
        return ConfigurationError(
            f"A Python worker of Spark cannot run Penstock: {fault}. All hosts need the same Python and packages."
        )
    if found := _MACHINERY.search(text):
        return TemporaryError(f"Spark could not finish a run: {found.group()}")
    name, _, words = _cause(text).partition(": ")
    if name in _OURS:
        return _OURS[name](words)
    if isinstance(error, (AnalysisException, ParseException)):
        return TransformError(f"Spark cannot plan what the transform returned: {_first_line(text)}")
    return _broken(text)


def _is_cut(error: Exception) -> bool:
    """Return True if the connection to the JVM broke. For a call that breaks off Py4J reports only its name; an error
    from the JVM itself has a trace or a Java exception."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    return type(error) is Py4JError and _BROKEN_OFF.fullmatch(str(error)) is not None


def is_of_spark(error: BaseException) -> bool:
    """Return False for a broken connection of the user's own code, which says nothing of Spark."""
    if not isinstance(error, ConnectionError):
        return isinstance(error, SPARK_ERRORS)
    places = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)]
    raising = next((place for place in reversed(places) if not _is_of_python(place)), None)
    return raising is not None and not _SPARKS.isdisjoint(raising.parts)


def _is_of_python(place: Path) -> bool:
    return place.is_relative_to(_PYTHON) and "site-packages" not in place.parts


def _broken(text: str) -> RunBroken:
    """A run that broke in the user's code, with the place in it, or for a cause that cannot be told."""
    cause, found = _cause(text), _TRACEBACK.findall(text)
    if not found:
        return RunBroken(cause, fingerprint=_fingerprint(text))
    frames = found[-1][0]
    place = place_in(frames)
    name, _, words = cause.partition(": ")
    return RunBroken(
        cause if place is None else f"{cause} ({place})",
        fingerprint=_fingerprint(text),
        raised=Raised(error_type=name, error=words, traceback=f"{frames}{cause}\n"),
    )


def python_fault(error: Exception) -> str | None:
    """Return what is wrong with the Python of Spark's workers, if that is why something failed."""
    text = _text(error)
    if found := _OTHER_VERSION.search(text):
        return f"they are Python {found[1]}, and the driver is another version"
    if (found := _NO_MODULE.search(text)) and found[1] in _PACKAGES:
        return f"they lack the package {found[1]}"
    if found := _NO_PROGRAM.search(text):
        return f"the program {found[1]} cannot be started"
    return None


def _text(error: Exception) -> str:
    """All that is told of the error, the deepest cause first: a failed write itself says only that it failed."""
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
        error = getattr(error, "_cause", None)  # PySpark keeps the Java cause there, converted


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _cause(text: str) -> str:
    """The line that says most: the last line of a Python traceback inside, else Spark's first one."""
    blocks = _TRACEBACK.findall(text)
    return str(blocks[-1][1]).strip() if blocks else _first_line(text)


def _fingerprint(text: str) -> str:
    return _VARIABLE.sub("?", _cause(text))[:200]
