"""What exists without what is known, in one pass over both; and what of it is nobody's fault."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so

from penstock.objects.reference import S3_KEY_BYTES_MAX, ObjectRef, decode_key, encode_key, uri_of
from penstock.objects.scan_report import CHUNK_OBJECTS, PROBLEMS_MAX, TABLE_FOLDERS
from penstock.pipeline.reconcile.existing import object_id
from penstock.pipeline.reconcile.known import KNOWN_ID
from penstock.pipeline.reconcile.scope import PREFIXES_MAX, LeftOut, Prefix, Scope

_TABLE = rf"^((?:[^/]*/)*?)(?:{'|'.join(TABLE_FOLDERS)})/"
_HIDDEN = r"(?:^|/)\.(?!\.?(?:/|\z))"  # begins with a dot, and is not "." or "..", which are names like others in S3
_URL = r"^[A-Za-z][A-Za-z0-9+.-]*://"  # as notifications may not name a key
_FIRST_FOLDER = r"^[^/]*/"
_PROBLEM = "problem"


class Missing:
    """What was found; kept on the executors' disks until `close`."""

    def __init__(self, kept: DataFrame, scope: Scope, *, listed: int) -> None:
        self.listed = listed
        self._kept = kept
        self._scope = scope
        self._judged = kept.withColumn("left_out", _left_out(scope, _tables(kept, scope)))
        counts = {row["left_out"]: row["count"] for row in self._judged.groupBy("left_out").count().collect()}
        self.count: int = counts.pop(None, 0)
        self._problems_count: int = counts.pop(_PROBLEM, 0)
        self.left_out: Mapping[LeftOut, int] = {LeftOut(reason): number for reason, number in counts.items()}

    @property
    def problems(self) -> Sequence[str]:
        """What could not be looked at, some of it."""
        if not self._problems_count:
            return ()
        rows = self._judged.where(F.col("left_out") == _PROBLEM).select("problem").limit(PROBLEMS_MAX).collect()
        return sorted(row["problem"] for row in rows)

    def prefixes(self) -> Sequence[Prefix]:
        """The first folders, those with the most first."""
        if not self.count:
            return ()
        first = F.regexp_extract(_relative(self._scope), _FIRST_FOLDER, 0)
        found = self._rows().groupBy(first.cast("binary").alias("first")).count()
        rows = found.orderBy(F.desc("count"), "first").limit(PREFIXES_MAX).collect()
        scope = self._scope
        return [
            Prefix(uri=uri_of(scope.bucket, scope.below + decode_key(bytes(row["first"]))), missing=row["count"])
            for row in rows
        ]

    def chunks(self, *, limit: int | None = None, objects_max: int = CHUNK_OBJECTS) -> Iterator[Sequence[ObjectRef]]:
        """The missing objects, or so many of them, in no order; ``objects_max`` at once."""
        rows = self._rows() if limit is None else self._rows().limit(limit)
        found = iter(rows.select("key", "size_bytes", "version_id", "etag").toLocalIterator(prefetchPartitions=True))
        while chunk := tuple(islice(found, objects_max)):
            yield [
                ObjectRef(
                    bucket=self._scope.bucket,
                    key=decode_key(bytes(row["key"])),
                    size_bytes=row["size_bytes"],
                    version_id=row["version_id"],
                    etag=row["etag"],
                )
                for row in chunk
            ]

    def close(self) -> None:
        """Give the disks back."""
        self._kept.unpersist()

    def _rows(self) -> DataFrame:
        return self._judged.where(F.col("left_out").isNull())


def find_missing(existing: DataFrame, known: DataFrame, scope: Scope) -> Missing:
    """Rows of `EXISTING` but for those whose ids are known. Objects that are told of twice are found once.

    A merge join: it spills where memory ends, and neither side has to fit anywhere.
    """
    observation = Observation()
    identified = existing.withColumn("object_id", object_id(scope.bucket)).observe(
        observation, F.count_if(F.col("problem").isNull()).alias("listed")
    )
    unknown = identified.join(known, F.col("object_id") == F.col(KNOWN_ID), "left_anti").dropDuplicates(["object_id"])
    kept = unknown.persist(StorageLevel.DISK_ONLY)
    try:
        kept.count()
        return Missing(kept, scope, listed=observation.get["listed"])
    except BaseException:
        kept.unpersist()
        raise


def _tables(kept: DataFrame, scope: Scope) -> Sequence[str]:
    """What the keys of tables begin with. A table's own files are known to no ledger, so they are among these rows."""
    if scope.is_local:
        return ()
    relative = _relative(scope)
    inside = [F.contains(relative, F.lit(f"{folder}/")) for folder in TABLE_FOLDERS]
    rows = kept.where(inside[0] | inside[1]).where(relative.rlike(_TABLE))
    roots = rows.select(F.regexp_extract(relative, _TABLE, 1).alias("root")).distinct().collect()
    return [f"{scope.below}{row['root']}" for row in roots]


def _left_out(scope: Scope, tables: Sequence[str]) -> Column:
    key = F.col("key").cast("string")
    young = F.when(F.col("modified_at") >= scope.before, F.lit(LeftOut.YOUNG.value))
    found = F.when(F.col("problem").isNotNull(), F.lit(_PROBLEM))
    if scope.is_local:
        return F.coalesce(found, young)
    if scope.excluded or tables:
        places = [*(f"{place.rstrip('/')}/" for place in scope.excluded), *tables]
        below = F.array(*map(F.lit, places))
        named = key.isin(list(scope.excluded)) if scope.excluded else F.lit(False)
        excluded = named | F.exists(below, lambda place: F.startswith(key, place))
        found = found.when(excluded, F.lit(LeftOut.EXCLUDED.value))
    marker = key.endswith("/") & (F.col("size_bytes") == 0)
    unnameable = (F.octet_length("key") > S3_KEY_BYTES_MAX) | key.rlike(_URL) | F.contains(key, F.lit("\0"))
    found = (
        found.when(marker, F.lit(LeftOut.FOLDER_MARKER.value))
        .when(_relative(scope).rlike(_HIDDEN), F.lit(LeftOut.HIDDEN.value))
        .when(unnameable, F.lit(LeftOut.UNNAMEABLE.value))
        .when(F.col("is_archived"), F.lit(LeftOut.ARCHIVED.value))
    )
    return F.coalesce(found, young)


def _relative(scope: Scope) -> Column:
    """The key below the source; the source's own name as it is."""
    key, below = F.col("key"), encode_key(scope.below)
    return F.when(F.startswith(key, F.lit(below)), F.substr(key, F.lit(len(below) + 1))).otherwise(key).cast("string")
