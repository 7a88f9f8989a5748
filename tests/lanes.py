"""Spread the tests of one run over several processes (pytest -n).

A process gets whole files, so that a server or a module's fixture is started for all tests of a file. Two lanes hold
more than a file: tests/spark shares one Spark session, which takes seconds to start and most of a gigabyte, and
some files of tests/chaos start JVM after JVM. Hence at most two JVMs run at once. The lanes come first and the short
tests last, so that every core is busy until the end.
"""

from xdist.scheduler import LoadScopeScheduling

LANES = {
    "tests/spark/": "Spark session",
    "tests/docs/test_tutorial.py": "Spark session",
    "tests/chaos/test_spark_": "chaos on Spark",
    "tests/chaos/test_cluster.py": "chaos on Spark",
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
