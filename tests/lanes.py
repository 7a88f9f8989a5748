"""Spread the tests of one run over several processes (pytest -n).

A process gets whole files, so that a server or a module's fixture is started for all tests of a file. Six lanes hold
more than a file: tests/spark shares one Spark session, which takes seconds to start and most of a gigabyte; two lanes
share a cluster each, two start programs with a Spark of their own, and tests/web/browser shares one Chromium. So few
JVMs run at once. The lanes of Spark cost about the same. The lanes come first and the short tests last, so that every
core is busy until the end.
"""

from collections.abc import Sequence
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

LANES = {
    "tests/spark/test_cluster_formats.py": "Spark cluster",
    "tests/spark/test_doctor_spark.py": "Spark cluster",
    "tests/spark/test_executors.py": "Spark cluster",
    "tests/spark/test_submit_to_cluster.py": "Spark cluster",
    "tests/chaos/test_cluster": "chaos on Spark",
    "tests/chaos/test_spark_": "chaos on Spark",
    "tests/spark/test_connect.py": "ends of Spark",
    "tests/spark/test_session_end.py": "ends of Spark",
    "tests/spark/test_spark_death.py": "ends of Spark",
    "tests/spark/test_worker_stop.py": "ends of Spark",
    "tests/spark/test_given_sessions.py": "programs on Spark",
    "tests/spark/test_spark_submit.py": "programs on Spark",
    "tests/docs/test_tutorial.py": "programs on Spark",
    "tests/spark/": "Spark session",
    "tests/web/browser/": "browser",
}

# Folders by the duration of their longest file.
ORDER = (
    *LANES,
    "tests/chaos/",
    "tests/integration/",
    "tests/deploy/",
    "tests/conformance/",
    "tests/cli/",
    "tests/docs/",
)


class Lanes(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)


def lane(nodeid: str) -> str:
    """Return the name of the unit of work that a test belongs to: a lane, else its file."""
    for start, name in LANES.items():
        if nodeid.startswith(start):
            return name
    return nodeid.split("::", 1)[0]


def position(nodeid: str) -> int:
    """Return the rank of a test's folder, lowest first."""
    return next((rank for rank, start in enumerate(ORDER) if nodeid.startswith(start)), len(ORDER))


def collection_order(arguments: Sequence[str], worker_id: str, workers: int) -> list[str]:
    """Return the files of `arguments`, which are folders or files, in the order in which a worker collects them.

    Each worker begins with another file, because compiling a file takes longer than loading compiled code: together,
    they compile each file about once. Arguments that name single tests are returned unchanged.
    """
    if any("::" in argument for argument in arguments):
        return list(arguments)
    files = [str(file) for argument in arguments for file in _files(Path(argument))]
    first = len(files) * int(worker_id.removeprefix("gw")) // workers
    return files[first:] + files[:first]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
