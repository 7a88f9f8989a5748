"""The declaration of a pipeline: checked as far as possible without Spark, and then frozen."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.app.cleanup import Cleanup, Keep, check_fits
from penstock.app.paths import real
from penstock.app.pipelines.published import PublishedBatch
from penstock.errors import UsageError
from penstock.handlers.durations import Duration, Size, bytes_of, seconds_of
from penstock.ledger.records import OnChange
from penstock.messaging.declarations import checks_class_options
from penstock.messaging.schema import Queue
from penstock.objects.selection import checked_patterns
from penstock.pipeline.merging.declaration import Merge
from penstock.sinks.declaration import SinkDeclaration
from penstock.sinks.registry import SINKS, split_address
from penstock.storage.address import check_address, is_s3, s3_address

if TYPE_CHECKING:
    from penstock.pipeline.spark.declaration import Frame
    from penstock.pipeline.spark.source.own_reader import ReaderFunction

Transform = Callable[["Frame"], "Frame"]

PUBLISHED_SUFFIX = "-published"
ATTEMPTS_LIMIT = 100  # same limits as the settings of these names
OBJECTS_LIMIT = 100_000
DEFAULT_FORMAT = "jsonl"
OWN_SCHEMA = ("text", "binary")  # formats whose columns need not be declared
Evolve = Literal["none", "rescue", "add", "fail"]
EVOLUTIONS: tuple[Evolve, ...] = get_args(Evolve)
Change = Literal["add", "replace", "tail", "refuse"]
CHANGES: tuple[Change, ...] = get_args(Change)
GROWING = ("jsonl", "csv", "text")  # formats in which appended lines can be read alone
_CSV_OPTIONS: dict[str, Any] = {
    "delimiter": None,
    "header": True,
    "null": (),
    "quote": None,
    "escape": None,
    "comment": None,
    "skip_lines": None,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@checks_class_options("ObjectSource")
@dataclass(frozen=True, slots=True)
class ObjectSource:
    """The objects of a pipeline: where they are, which queue has their notifications, and their format.

    Args:
        folder: A local folder or file, s3://BUCKET/PREFIX, or a pattern of either such as logs/2026-*/**/*.csv; nothing
            else is read.
        queue: The queue with notifications from S3, the watcher, `App.announce` or `Pipeline.run`.
        format: jsonl, json (documents), csv or text, each also compressed with gzip, bzip2 or zstd; parquet, orc, avro
            or binary.
        schema: Spark DDL, such as "id long, ts timestamp"; not needed for text and binary.
        delimiter: CSV only: the field separator.
        header: CSV only: the first line has the column names.
        null: CSV only: texts without quotes that mean NULL, such as ["NA"].
        quote: CSV only: the quote; "" for none.
        escape: CSV only: the character that escapes quotes inside quotes, such as Spark's backslash.
        comment: CSV only: lines that begin with this character are skipped.
        skip_lines: CSV only: lines before the header.
        include: Patterns, such as *.csv, of which an object below the folder has to match one.
        exclude: Patterns of objects that are left out.
        partitions: Columns from paths such as day=2026-01-02/, with their types: {"day": "DATE"}.
        reader: In place of a format: a function that takes a `SourceObject` and yields `pyarrow.RecordBatch`. It is at
            the top level of a module that Spark's executors can import.
        evolve: What happens to fields that no column takes. "none": they are counted. "rescue": they, and values of the
            wrong type, are kept as JSON in the column _rescued. "add": new fields become columns; what fits none is in
            _rescued. "fail": an object with such a field fails.
        on_change: What happens to an object that was processed and has changed since. "replace": the rows of the new
            version take the place of the old one's, in one commit. "tail": the same, but if the file only grew,
            only the appended lines are read (jsonl, csv and text). "add": its rows are added. "refuse": the object
            fails. Default: replace, or add if the rows have no column _object.
        cleanup: One of `from penstock import cleanup`, applied to objects whose rows are published. Default: keep them.

    Raises:
        UsageError: An option is unknown, missing or invalid, or does not fit the format or the folder.
    """

    folder: str | PathLike[str]
    queue: str = field(kw_only=True)
    format: str = field(default=DEFAULT_FORMAT, kw_only=True)
    schema: str | None = field(default=None, kw_only=True)
    delimiter: str | None = field(default=None, kw_only=True)
    header: bool = field(default=True, kw_only=True)
    null: Sequence[str] = field(default=(), kw_only=True)
    quote: str | None = field(default=None, kw_only=True)
    escape: str | None = field(default=None, kw_only=True)
    comment: str | None = field(default=None, kw_only=True)
    skip_lines: int | None = field(default=None, kw_only=True)
    include: Sequence[str] = field(default=(), kw_only=True)
    exclude: Sequence[str] = field(default=(), kw_only=True)
    partitions: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    reader: "ReaderFunction | None" = field(default=None, kw_only=True)
    evolve: Evolve = field(default="none", kw_only=True)
    on_change: Change | None = field(default=None, kw_only=True)
    cleanup: Cleanup = field(default_factory=Keep, kw_only=True)

    def __post_init__(self) -> None:
        check_address("source", self.folder)
        if not self.queue:
            raise UsageError(f"The source {self.folder} has no queue; name the one with its notifications.")
        if self.schema is None and self.format not in OWN_SCHEMA:
            raise UsageError(
                f"The source {self.folder} has no schema; declare one, such as schema='id long, ts timestamp'."
            )
        csv_only = [name for name, default in _CSV_OPTIONS.items() if getattr(self, name) != default]
        if self.format != "csv" and csv_only:
            raise UsageError(
                f"The source {self.folder} has the format {self.format}; only csv has {' and '.join(csv_only)}."
            )
        if self.reader is not None:
            if self.format != DEFAULT_FORMAT:
                raise UsageError(
                    f"The source {self.folder} has a reader and the format {self.format}; give one of them."
                )
            reader_name(self.reader)
        if self.evolve not in EVOLUTIONS:
            raise UsageError(
                f"The source {self.folder} has evolve={self.evolve!r}; write one of {', '.join(EVOLUTIONS)}."
            )
        if self.evolve != "none" and self.format in OWN_SCHEMA:
            raise UsageError(
                f"The source {self.folder} has the format {self.format}, whose files have no other fields; leave out "
                "evolve."
            )
        if self.on_change is not None and self.on_change not in CHANGES:
            raise UsageError(
                f"The source {self.folder} has on_change={self.on_change!r}; write one of {', '.join(CHANGES)}, or "
                "leave it out."
            )
        if self.on_change == "tail" and (self.reader is not None or self.format not in GROWING):
            kind = "a reader of its own" if self.reader is not None else f"the format {self.format}"
            raise UsageError(
                f"The source {self.folder} has on_change='tail' and {kind}: appended lines can be read alone only in "
                f"{', '.join(GROWING)}; write on_change='replace'."
            )
        if isinstance(self.null, str):
            raise UsageError(f"The source {self.folder} has null={self.null!r}; write a list of texts, such as ['NA'].")
        if not isinstance(self.partitions, Mapping):
            raise UsageError(
                f"The source {self.folder} has partitions={self.partitions!r}; write names and types, such as "
                "{'day': 'DATE'}."
            )
        checked_patterns(self.include, "include")
        checked_patterns(self.exclude, "exclude")
        check_fits(self.cleanup, self.folder)


def change_rule(source: ObjectSource) -> OnChange | None:
    """Return the declared rule for objects that change; None: as the table's columns allow."""
    return None if source.on_change is None else OnChange(source.on_change)


def option_rule(on_change: str | None) -> OnChange | None:
    """Return the rule that `--on-change` names; None if it was not given. Raises `UsageError` if there is none."""
    if on_change is not None and on_change not in CHANGES:
        raise UsageError(f"--on-change {on_change} is unknown; write one of {', '.join(CHANGES)}.")
    return None if on_change is None else OnChange(on_change)


def check_change_rule(on_change: str | None, *, wants: str) -> None:
    """Raise `UsageError` if the rule for objects that change does not fit a merge. ``wants``: subject and verb."""
    if on_change not in (None, "add", "refuse"):
        raise UsageError(
            f"{wants}: a merge replaces rows by their keys, and a changed object adds its rows to it. Leave out one of "
            "the two."
        )


def check_provenance(given: OnChange | None, *, provenance: bool, wants: str, remedies: str) -> None:
    """Raise `UsageError` if rows are to be replaced that do not say which object they are from.

    ``wants`` is the subject and verb with the option; ``remedies`` are the ways out, as a part of a sentence.
    """
    if given is not None and given.replaces and not provenance:
        raise UsageError(
            f"{wants}, so the rows have no column _object, by which the rows of a changed object are found: {remedies}."
        )


def reader_name(reader: Any) -> str:
    """Return the name of a reader as module:function. Raises `UsageError` if executors cannot import it."""
    module, name = getattr(reader, "__module__", None), getattr(reader, "__qualname__", None)
    if not callable(reader) or not isinstance(module, str) or not isinstance(name, str):
        raise UsageError(f"The reader {reader!r} is not a function.")
    if module == "__main__" or "<" in name:
        raise UsageError(
            f"The reader {name} cannot be imported by Spark's executors: define it with def at the top level of a "
            "module that is imported."
        )
    return f"{module}:{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDeclaration:
    """One declared pipeline. A number that is None is taken from the app's settings."""

    name: str
    source: ObjectSource
    sink: SinkDeclaration
    transform: Transform | None
    provenance: bool
    max_batch_objects: int | None
    max_batch_bytes: int | None
    max_wait_seconds: float
    max_attempts: int | None
    max_quarantine_ratio: float | None
    published: Queue[PublishedBatch]
    merge: Merge | None = None

    @property
    def may_replace(self) -> bool:
        """True if rows may be replaced, as far as is known without the table's columns."""
        if self.merge is not None:
            return True
        rule = change_rule(self.source)
        return self.provenance if rule is None else rule.replaces


def declared(
    name: Any,
    *,
    source: Any,
    sink: Any,
    transform: Any,
    merge: Any = None,
    provenance: bool,
    max_batch_objects: int | None,
    max_batch_bytes: Size | None,
    max_wait: Duration,
    max_attempts: int | None,
    max_quarantine_ratio: float | None,
) -> PipelineDeclaration:
    """Return the checked declaration. Raises `UsageError` for an invalid option."""
    if not isinstance(name, str):
        raise UsageError(
            "app.pipeline is not a decorator: write NAME = app.pipeline('NAME', source=..., sink=..., transform=...)."
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"The pipeline's name {name!r} does not fit: up to 64 letters, digits, dots, hyphens and underscores."
        )
    if not isinstance(source, ObjectSource) or not isinstance(sink, SinkDeclaration):
        sinks = " or ".join(f"sink={package.declaration}(...)" for package in SINKS.values())
        raise UsageError(f"The pipeline {name} needs source=ObjectSource(...) and {sinks}.")
    if sink.scheme not in SINKS:
        raise UsageError(
            f"The pipeline {name} has a sink in the format {sink.scheme}, which is not registered; the formats: "
            f"{', '.join(SINKS)}."
        )
    if transform is not None and not callable(transform):
        raise UsageError(f"The pipeline {name} has a transform that is not a function: {transform!r}.")
    check_provenance(
        change_rule(source),
        provenance=provenance,
        wants=f"The pipeline {name} has on_change={source.on_change!r} and provenance=False",
        remedies="leave out provenance=False, or write on_change='add' or 'refuse'",
    )
    if merge is not None and not isinstance(merge, Merge):
        raise UsageError(f"The pipeline {name} has merge={merge!r}; write merge=Merge(key=..., order_by=...).")
    if merge is not None:
        check_change_rule(source.on_change, wants=f"The pipeline {name} has a merge and on_change={source.on_change!r}")
    _check_range(name, "max_batch_objects", max_batch_objects, 1, OBJECTS_LIMIT)
    _check_range(name, "max_attempts", max_attempts, 1, ATTEMPTS_LIMIT)
    _check_range(name, "max_quarantine_ratio", max_quarantine_ratio, 0, 1)
    return PipelineDeclaration(
        name=name,
        source=source,
        sink=sink,
        transform=transform,
        provenance=provenance,
        max_batch_objects=max_batch_objects,
        max_batch_bytes=None if max_batch_bytes is None else bytes_of("max_batch_bytes", max_batch_bytes),
        max_wait_seconds=seconds_of("max_wait", max_wait),
        max_attempts=max_attempts,
        max_quarantine_ratio=max_quarantine_ratio,
        published=Queue(f"{name}{PUBLISHED_SUFFIX}", PublishedBatch),
        merge=merge,
    )


def check_one_table(pipelines: Sequence[PipelineDeclaration]) -> None:
    """Raise `UsageError` if a pipeline may replace rows in a table that another one writes too.

    Rows are found by their object alone, so rows that the other pipeline made of the same object would leave too.
    """
    for one, other in combinations(pipelines, 2):
        replacing = [pipeline for pipeline in (one, other) if pipeline.may_replace]
        if replacing and _place(one.sink) == _place(other.sink):
            names = " and ".join(pipeline.name for pipeline in replacing)
            remedy = "Give each pipeline its own table."
            if all(pipeline.merge is None for pipeline in replacing):
                remedy = (
                    f"Write on_change='add' or 'refuse' in ObjectSource(...) of {names}, or give each pipeline its own "
                    "table."
                )
            raise UsageError(
                f"The pipelines {one.name} and {other.name} write the table {other.sink.address}, and {names} would "
                "replace rows there, those of the other pipeline included: rows do not say which pipeline made them. "
                f"{remedy}"
            )


def _place(sink: SinkDeclaration) -> str:
    """Return where a table is, the same for every spelling of its address."""
    _, address = split_address(fspath(sink.address))
    return str(s3_address(address)) if is_s3(address) else str(real(address))


def _check_range(name: str, option: str, given: float | None, least: float, most: float) -> None:
    if given is not None and not least <= given <= most:
        raise UsageError(f"The pipeline {name} has {option}={given}; it has to be between {least} and {most}.")
