"""Only three modules touch the JVM or a Spark Connect client; all others work on both kinds of Spark."""

import re
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent
CLASSIC_ONLY = re.compile(
    r"\bsparkContext\b|\bSparkContext\b|\b_jvm\b|\b_jsc\b|\b_jsparkSession\b|\b_gateway\b|\.rdd\b|\bpy4j\b|\._jdf\b|\._jc\b"
)
CONNECT_ONLY = re.compile(r"\binterruptTag\b|\baddArtifacts\b|\bregisterProgressHandler\b|\bcloneSession\b|\bgrpc\b")
ALLOWED = {
    "pipeline/spark/classic.py": {CLASSIC_ONLY, CONNECT_ONLY},  # the JVM has a cloneSession, too
    "pipeline/spark/jvm.py": {CLASSIC_ONLY},
    "pipeline/spark/connect.py": {CONNECT_ONLY},
    "pipeline/extra.py": {CONNECT_ONLY},  # the names of its packages
    "pipeline/spark/faults.py": {CLASSIC_ONLY, CONNECT_ONLY},  # texts of errors, and gRPC's
    "messaging/failure.py": {CLASSIC_ONLY},  # Py4J's archive in tracebacks
}


def code_of(path: Path) -> str:
    """Return a module's text without comments and docstrings."""
    text = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text())
    return re.sub(r"(?m)#.*$", "", text)


def test_only_the_two_runtimes_touch_the_jvm_or_a_connect_client() -> None:
    found = {
        (str(path.relative_to(ROOT)), match.group())
        for path in ROOT.rglob("*.py")
        for pattern in (CLASSIC_ONLY, CONNECT_ONLY)
        if pattern not in ALLOWED.get(str(path.relative_to(ROOT)), set())
        for match in pattern.finditer(code_of(path))
    }
    assert found == set()


def test_every_exception_is_needed() -> None:
    unused = {
        name for name, patterns in ALLOWED.items() for pattern in patterns if not pattern.search(code_of(ROOT / name))
    }
    assert unused == set()
