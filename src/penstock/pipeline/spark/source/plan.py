"""The read plan of one run: its objects, and how they are cut into Spark partitions.

The driver makes the plan once, from the sizes in the claim, and saves it before the run begins; the reader in the
executors and the summary both rely on it. Small objects are packed together, large plain ones are cut into byte ranges,
compressed ones stay whole. A piece owns the lines that begin in it.
"""

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from socket import gethostname
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from penstock.errors import TemporaryError
from penstock.objects.reference import ObjectRef, decode_key
from penstock.pipeline.batch_record import run_files
from penstock.pipeline.spark.source.inflate import codec_of
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

_MIB = 1 << 20
_VERSION = 3
PLAN_FILE = "plan.json"

# The overhead of one object, and the cost of one compressed byte, both in bytes of plain lines.
_OBJECT_COST_BYTES = 64 << 10
_INFLATION = 6
_PARTITIONS_A_CORE = 3
_PARTITION_COST_MIN = 4 * _MIB
_PARTITION_COST_MAX = 256 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The lines of an object that begin in ``[start, stop)``; ``object`` is its index in the plan."""

    object: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """One run of one attempt. Partitions and objects are identified by their index."""

    attempt_id: str
    run: int
    options: ReadOptions
    objects: Sequence[ObjectRef]
    partitions: Sequence[Sequence[Piece]]
    source: str  # see `store_at`
    aws: Aws
    quarantine: Files  # the table's root
    work: Files  # the run's own folder

    @property
    def reports(self) -> Files:
        """Return the folder for the reader's reports."""
        return self.work.below("reports")

    @property
    def cuts_are_guesses(self) -> bool:
        """Return True if an object is cut at a point that may be inside a record of several lines."""
        if self.options.format != "csv" or not self.options.csv.quote:
            return False
        return any(piece.start for partition in self.partitions for piece in partition)

    @property
    def quarantine_dir(self) -> str:
        """Return the run's folder of quarantine files, relative to the quarantine table's root, separated by "/"."""
        return run_files(self.attempt_id, self.run)

    def save(self) -> None:
        """Write the plan atomically into its work folder."""
        self.work.write(PLAN_FILE, json.dumps(_to_json(self), separators=(",", ":")).encode())

    @staticmethod
    def check_seen(work: Files) -> None:
        """Raise `TemporaryError` if this host does not see the plan that the driver saved in ``work``.

        The folder is named after the attempt, so an older plan cannot be mistaken for it.
        """
        if work.is_local and work.stat(PLAN_FILE) is None:
            raise TemporaryError(
                f"The host {gethostname()} does not see {work}/{PLAN_FILE}, which the driver has written: all hosts of "
                "the Spark cluster must share the folder of the table."
            )

    @staticmethod
    def load(work: Files) -> "ReadPlan":
        """Read a plan that `save` wrote."""
        return _from_json(json.loads(work.read(PLAN_FILE)))


def make_plan(
    objects: Sequence[ObjectRef],
    *,
    attempt_id: str,
    run: int,
    options: ReadOptions,
    cores: int,
    source: str,
    aws: Aws,
    quarantine: Files,
    work: Files,
    cuts: Mapping[int, Sequence[int]] | None = None,
) -> ReadPlan:
    """Cut the objects into partitions of about equal cost, a few per core.

    ``cuts`` maps object indexes to offsets; such an object is cut there and nowhere else. Raises `UsageError` for an
    invalid format or schema.
    """
    return ReadPlan(
        attempt_id=attempt_id,
        run=run,
        options=checked(options),
        objects=tuple(objects),
        partitions=_partitions(objects, cores, cuts or {}),
        source=source,
        aws=aws,
        quarantine=quarantine,
        work=work,
    )


def _partitions(
    objects: Sequence[ObjectRef], cores: int, cuts: Mapping[int, Sequence[int]]
) -> tuple[tuple[Piece, ...], ...]:
    total = sum(_cost(ref) for ref in objects)
    least = -(-total // _PARTITION_COST_MAX)
    count = max(1, least, min(cores * _PARTITIONS_A_CORE, -(-total // _PARTITION_COST_MIN)))
    target = max(1, -(-total // count))
    pieces = [piece for index, ref in enumerate(objects) for piece in _pieces(index, ref, target, cuts.get(index))]
    return _balance(pieces, objects, count)


def _cost(ref: ObjectRef) -> int:
    return _OBJECT_COST_BYTES + ref.size_bytes * (_INFLATION if codec_of(ref) else 1)


def _pieces(index: int, ref: ObjectRef, target_bytes: int, cuts: Sequence[int] | None) -> list[Piece]:
    """Return the whole object or equal pieces of at most the target size; with ``cuts``, the pieces between them."""
    size = ref.size_bytes
    count = 1 if codec_of(ref) or size <= max(target_bytes, _PARTITION_COST_MIN) else -(-size // target_bytes)
    edges = [0, *cuts, size] if cuts is not None else [size * part // count for part in range(count + 1)]
    return [Piece(object=index, start=start, stop=stop) for start, stop in pairwise(edges)]


def _balance(pieces: Sequence[Piece], objects: Sequence[ObjectRef], count: int) -> tuple[tuple[Piece, ...], ...]:
    """Assign each piece, the most costly first, to the least loaded partition; sort each by object and offset."""

    def cost(piece: Piece) -> int:
        ref = objects[piece.object]
        return _cost(ref) if codec_of(ref) else _OBJECT_COST_BYTES + piece.stop - piece.start

    loads = [(0, index) for index in range(min(count, len(pieces)))]
    parts: list[list[Piece]] = [[] for _ in loads]
    for piece in sorted(pieces, key=cost, reverse=True):
        load, index = heapq.heappop(loads)
        parts[index].append(piece)
        heapq.heappush(loads, (load + cost(piece), index))
    return tuple(tuple(sorted(part, key=lambda piece: (piece.object, piece.start))) for part in parts)


def _to_json(plan: ReadPlan) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "attempt_id": plan.attempt_id,
        "run": plan.run,
        "options": asdict(plan.options),
        "objects": [
            [ref.bucket, _percent(ref.key), ref.size_bytes, ref.version_id, ref.etag, ref.sequencer]
            for ref in plan.objects
        ],
        "partitions": [[[piece.object, piece.start, piece.stop] for piece in part] for part in plan.partitions],
        "source": _percent(plan.source),
        "aws": asdict(plan.aws),
        "quarantine": _percent(str(plan.quarantine)),
        "work": _percent(str(plan.work)),
    }


def _from_json(values: dict[str, Any]) -> ReadPlan:
    if values["version"] != _VERSION:
        raise ValueError(f"a plan of version {values['version']}; this is version {_VERSION}")
    aws = Aws(**values["aws"])
    return ReadPlan(
        attempt_id=values["attempt_id"],
        run=values["run"],
        options=ReadOptions(**values["options"] | {"csv": CsvOptions(**values["options"]["csv"])}),
        objects=tuple(_ref(*row) for row in values["objects"]),
        partitions=tuple(
            tuple(Piece(object=index, start=start, stop=stop) for index, start, stop in part)
            for part in values["partitions"]
        ),
        source=_unpercent(values["source"]),
        aws=aws,
        quarantine=files_at(_unpercent(values["quarantine"]), aws),
        work=files_at(_unpercent(values["work"]), aws),
    )


def _ref(
    bucket: str, key: str, size_bytes: int, version_id: str | None, etag: str | None, sequencer: str | None
) -> ObjectRef:
    return ObjectRef(
        bucket=bucket,
        key=_unpercent(key),
        size_bytes=size_bytes,
        version_id=version_id,
        etag=etag,
        sequencer=sequencer,
    )


def _percent(text: str) -> str:
    """Percent-encode a name: it may contain any bytes, JSON text may not."""
    return quote_from_bytes(text.encode("utf-8", errors="surrogateescape"), safe="/")


def _unpercent(text: str) -> str:
    return decode_key(unquote_to_bytes(text))
