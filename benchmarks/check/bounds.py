"""The bounds of `make bench CHECK=1`: for each figure of the README and docs/why/benchmarks.md, a ratio and its limit.

A page's figure and its bound change together: tests/unit/benchmarks/test_bounds.py fails if a page no longer has the
text of a bound, if a figure in the README's table has no bound, or if a bound is far from its figure. Bounds are
ratios of two sides that one run of a benchmark measures, so they hold on other machines too, and generous, so that a
busy machine does not fail them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

README = "README.md"
PAGE = "docs/why/benchmarks.md"

_CHAIN = ("benchmarks.chain", "--rounds", "3")
_CSV = (*_CHAIN, "--format", "csv")
_PARQUET = (*_CHAIN, "--format", "parquet")
_S3 = ("benchmarks.s3", "--rounds", "3")
_REDIS = ("benchmarks.redis", "--only", "penstock,bullmq,sidekiq,taskiq", "--with-recovery")
_REDIS_ROUNDS = ("benchmarks.redis", "--only", "penstock,bare,bullmq", "--rounds", "5")
_WORKER = ("benchmarks.worker", "--only", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A ratio that a benchmark measures, and the least or the greatest value with which a page's figure holds."""

    name: str  # in the file that the command writes for `--json`
    command: Sequence[str]  # a module of this folder and its options
    figures: Sequence[str]  # texts of the page that depend on this ratio; the first one has the ratio itself
    page: str = README
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, measured: float) -> bool:
        """Return True if the measured value is within the bound."""
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )

    @property
    def limit(self) -> str:
        """The bound for people."""
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


BOUNDS: Sequence[Bound] = (
    Bound(
        name="redis async / bullmq",
        command=_REDIS,
        figures=("BullMQ 14,700 (1.7 x)", "25,000"),
        at_least=1.2,
    ),
    Bound(name="redis async / sidekiq", command=_REDIS, figures=("Sidekiq 4,800 (5.2 x)",), at_least=3.5),
    Bound(name="redis async / taskiq", command=_REDIS, figures=("taskiq 3,200 (7.8 x)",), at_least=5.0),
    Bound(
        name="redis recovery: bullmq / async",
        command=_REDIS,
        figures=("BullMQ 60.5 s (11.9 x)", "5.1 s; 59 to 70 s"),
        at_least=6.0,
    ),
    Bound(
        name="chain small / spark",
        command=_CHAIN,
        figures=("4.16 s (4.5 x)", "0.93 s", "5,000 files of 10 KB"),
        at_least=2.7,
    ),
    Bound(
        name="chain big / spark",
        command=_CHAIN,
        figures=("7.64 s (2.4 x)", "3.21 s", "2 files of 500 MB"),
        at_least=1.6,
    ),
    Bound(name="chain small time / polars", command=_CHAIN, figures=("0.49 s",), at_most=3.5),
    Bound(name="chain big time / polars", command=_CHAIN, figures=("2.65 s",), at_most=2.0),
    Bound(
        name="chain small csv / spark",
        command=_CSV,
        page=PAGE,
        figures=("| 5,000 x 10 KB, CSV | 5.05 | 0.65 | 1.02 | 5.0 |",),
        at_least=3.0,
    ),
    Bound(
        name="chain big csv / spark",
        command=_CSV,
        page=PAGE,
        figures=("| 2 x 500 MB, CSV | 10.27 | 2.56 | 2.95 | 3.5 |",),
        at_least=2.2,
    ),
    Bound(
        name="chain small parquet / spark",
        command=_PARQUET,
        page=PAGE,
        figures=("| 5,000 x 10 KB, Parquet | 5.69 | 0.50 | 1.80 | 3.2 |",),
        at_least=2.0,
    ),
    Bound(
        name="chain big parquet / spark",
        command=_PARQUET,
        page=PAGE,
        figures=("| 2 x 500 MB, Parquet | 11.11 | 3.00 | 6.17 | 1.8 |",),
        at_least=1.2,
    ),
    Bound(
        name="s3 small: from S3 at 20 ms",
        command=_S3,
        page=PAGE,
        figures=("1.91 s instead of 0.90 s",),
        at_most=3.5,
    ),
    Bound(
        name="s3 big: from S3 at 20 ms",
        command=_S3,
        page=PAGE,
        figures=("instead of 1.33 s for 2 x 200 MB",),
        at_most=2.2,
    ),
    Bound(name="worker idle share of a core", command=_WORKER, figures=("0.2 % of a core",), at_most=0.006),
    Bound(
        name="redis plain / bullmq",
        command=_REDIS_ROUNDS,
        page=PAGE,
        figures=("1.6 to 1.7 times BullMQ",),
        at_least=1.1,
    ),
    Bound(
        name="redis async / bare",
        command=_REDIS_ROUNDS,
        page=PAGE,
        figures=("a third of the bare loop",),
        at_least=0.22,
    ),
    Bound(
        name="redis plain / bare",
        command=_REDIS_ROUNDS,
        page=PAGE,
        figures=("a third of the bare loop",),
        at_least=0.22,
    ),
)
