"""The JVM that this process talks to through Py4J, and Py4J's errors.

A Spark Connect client has neither, and its package `pyspark-client` comes without Py4J.
"""

import re
import subprocess
from collections.abc import Iterator
from typing import Any

try:
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
    from pyspark import SparkContext
except ImportError:  # a Connect client
    PY4J_ERRORS: tuple[type[Exception], ...] = ()
else:
    PY4J_ERRORS = (Py4JError,)

PACKAGES = frozenset({"py4j", "pyspark"})  # that talk to the JVM
END_SECONDS = 1.0  # its sockets close a moment before the process exits
CAUSES_MAX = 10

_BROKEN_OFF = re.compile(r"An error occurred while calling \S+")
_NOT_FOUND = re.compile(r"\S+ does not exist in the JVM")


def is_cut(error: Exception) -> bool:
    """Return True if the error means that the connection to the JVM broke.

    For a call cut off midway Py4J reports only the call's name, and for a lookup that the class does not exist, which
    may as well be a typo of the user's. An error from the JVM itself carries a stack trace or a Java exception.
    """
    if not PY4J_ERRORS:
        return False
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    if type(error) is not Py4JError:
        return False
    text = str(error)
    return _BROKEN_OFF.fullmatch(text) is not None or (_NOT_FOUND.fullmatch(text) is not None and has_ended())


def java_causes(error: Exception) -> Iterator[str] | None:
    """Return the messages of a Java exception and its causes, outermost first; None for other errors."""
    if not (PY4J_ERRORS and isinstance(error, Py4JJavaError)):
        return None
    return _messages(error.java_exception)


def launched() -> "subprocess.Popen[bytes] | None":
    """Return the JVM process that this process started; None if it started none, as under spark-submit."""
    return getattr(SparkContext._gateway, "proc", None)


def has_ended() -> bool:
    """Return True if the JVM that this process launched has ended. Waits for an exit that has begun."""
    process = launched()
    if process is None:
        return False
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _messages(throwable: Any) -> Iterator[str]:
    for _ in range(CAUSES_MAX):
        if throwable is None:
            return
        yield str(throwable)
        throwable = throwable.getCause()
