"""Read single cases with our reader, and name the outcome of each."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.property.source_run import Case, read, whole

from penstock.pipeline.spark.source.options import ReadOptions

NOTHING = "nothing"
FAILED = "failed"  # the whole object


def read_each(contents: Sequence[bytes], options: ReadOptions) -> list[tuple[list[dict[str, Any]], list[str], bool]]:
    """Return the rows of each content, the reasons of its bad lines, and True if the object failed."""
    found = read(Case(contents=contents, partitions=whole(contents), options=options))
    rows: dict[str, list[dict[str, Any]]] = {ref.uri: [] for ref in found.plan.objects}
    bad: dict[str, list[str]] = {ref.uri: [] for ref in found.plan.objects}
    for uri, _, row in found.rows:
        rows[uri].append(row)
    for uri, _, _, reason in found.bad:
        bad[uri].append(reason)
    return [(rows[ref.uri], bad[ref.uri], number in found.failures) for number, ref in enumerate(found.plan.objects)]


def outcome_of(rows: int, bad: Sequence[str], *, failed: bool = False) -> str:
    """Return the outcome in words, such as "row", "2 rows", "malformed", "row, malformed" or "nothing"."""
    if failed:
        return FAILED
    count = ["row" if rows == 1 else f"{rows} rows"] if rows else []
    return ", ".join([*count, *sorted(Counter(bad))]) or NOTHING
