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

_CHAIN = ("benchmarks.chain", "--rounds", "5")
_CSV = (*_CHAIN, "--format", "csv")
_PARQUET = (*_CHAIN, "--format", "parquet")
_S3 = ("benchmarks.s3", "--rounds", "5")
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


_Row = tuple[str, Sequence[str], str, float, Sequence[str]]  # name, command, page, limit and figures of a `Bound`

_AT_LEAST: Sequence[_Row] = (
    ("redis async / bullmq", _REDIS, README, 1.4, ("BullMQ 24,400 (1.9 x)", "47,000")),
    ("redis async / sidekiq", _REDIS, README, 2.8, ("Sidekiq 12,600 (3.7 x)",)),
    ("redis async / taskiq", _REDIS, README, 5.5, ("taskiq 5,000 (9.3 x)",)),
    ("redis recovery: bullmq / async", _REDIS, README, 5.0, ("BullMQ 60.2 s (10 x)", "5.9 s; 61 to 79 s")),
    ("chain small / spark", _CHAIN, README, 2.7, ("3.84 s (4.6 x)", "0.83 s", "5,000 files of 10 KB")),
    ("chain big / spark", _CHAIN, README, 1.6, ("7.43 s (2.6 x)", "2.85 s", "2 files of 500 MB")),
    ("chain small csv / spark", _CSV, PAGE, 3.0, ("| 5,000 x 10 KB, CSV | 4.91 | 0.65 | 1.02 | 4.8 |",)),
    ("chain big csv / spark", _CSV, PAGE, 2.2, ("| 2 x 500 MB, CSV | 10.11 | 2.56 | 2.87 | 3.5 |",)),
    ("chain small parquet / spark", _PARQUET, PAGE, 2.7, ("| 5,000 x 10 KB, Parquet | 5.70 | 0.50 | 1.42 | 4.0 |",)),
    ("chain big parquet / spark", _PARQUET, PAGE, 1.4, ("| 2 x 500 MB, Parquet | 9.84 | 2.84 | 4.36 | 2.3 |",)),
    ("redis plain / bullmq", _REDIS_ROUNDS, PAGE, 1.4, ("| times BullMQ's rate (24,405) | 2.1 |",)),
    ("redis async / bare", _REDIS_ROUNDS, PAGE, 0.22, ("| times the bare loop's rate (156,684) | 0.35 | 0.30 |",)),
    ("redis plain / bare", _REDIS_ROUNDS, PAGE, 0.22, ("| times the bare loop's rate (156,684) | 0.35 |",)),
)
_AT_MOST: Sequence[_Row] = (
    ("chain small time / polars", _CHAIN, README, 3.5, ("0.48 s",)),
    ("chain big time / polars", _CHAIN, README, 2.0, ("2.51 s",)),
    ("s3 small: from S3 at 20 ms", _S3, PAGE, 3.0, ("1.70 s instead of 0.88 s",)),
    ("s3 big: from S3 at 20 ms", _S3, PAGE, 2.0, ("instead of 1.29 s for 2 x 200 MB",)),
    ("worker idle share of a core", _WORKER, README, 0.006, ("0.2 % of a core",)),
)


BOUNDS: Sequence[Bound] = (
    *(
        Bound(name=name, command=command, page=page, at_least=limit, figures=figures)
        for name, command, page, limit, figures in _AT_LEAST
    ),
    *(
        Bound(name=name, command=command, page=page, at_most=limit, figures=figures)
        for name, command, page, limit, figures in _AT_MOST
    ),
)
