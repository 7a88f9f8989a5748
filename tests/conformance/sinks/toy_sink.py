"""A table format in one file: a numbered document for each version, which lists all files. It keeps no history.

It shows how little a format needs, and passes the whole suite. `test_new_sink` registers it and publishes to it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from penstock.errors import PublishConflict
from penstock.sinks import schema as encoding
from penstock.sinks.checks import check_files, check_free, check_new_partitioning, check_partitioning, mark_table
from penstock.sinks.declaration import SinkDeclaration
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.registry import SinkPackage
from penstock.sinks.sink import Append, Position, TableFile
from penstock.storage.files import Files

VERSIONS = "_toy"  # the folder of the documents


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySnapshot:
    """A `penstock.sinks.sink.TableSnapshot`."""

    root: Files
    pipeline: str
    version: int
    columns: str
    partition_by: Sequence[str]
    positions: Mapping[str, Position] = field(default_factory=dict)  # by pipeline
    stored: Sequence[DataFile] = ()

    @property
    def position(self) -> Position:
        return self.positions.get(self.pipeline, Position(seq=0, attempt_token=None))

    @property
    def schema(self) -> pa.Schema:
        return encoding.decode(self.columns)

    @property
    def schema_document(self) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(self.columns)
        return document

    def files(self) -> Sequence[TableFile]:
        return [
            TableFile(path=one.path, size_bytes=one.size_bytes, partition_values=self._values(one))
            for one in self.stored
        ]

    def rows(self) -> int | None:
        return sum(file.rows for file in self.stored)

    def dataset(self) -> Any:
        form, system = ds.ParquetFileFormat(), LocalFileSystem()
        parts = [
            form.make_fragment(f"{self.root}/{file.path}", system, partition_expression=_partition(self._values(file)))
            for file in self.stored
        ]
        return ds.FileSystemDataset(parts, self.schema, form, system)

    def append(self, append: Append) -> int:
        check_files(self.root, append.files, partition_by=self.partition_by)
        position = Position(seq=append.seq, attempt_token=attempt_token(append.attempt_id))
        return self.commit(positions={**self.positions, self.pipeline: position}, stored=(*self.stored, *append.files))

    def commit(self, **changes: Any) -> int:
        after = replace(self, version=self.version + 1, **changes)
        document = {
            "columns": after.columns,
            "partition_by": list(after.partition_by),
            "positions": {pipeline: asdict(position) for pipeline, position in after.positions.items()},
            "files": [asdict(file) for file in after.stored],
        }
        if not self.root.write_new(f"{VERSIONS}/{after.version:08}.json", json.dumps(document).encode()):
            raise PublishConflict(f"version {after.version} of {self.root} exists")
        return after.version

    def _values(self, file: DataFile) -> Mapping[str, Any]:
        types = {name: self.schema.field(name).type for name in self.partition_by}
        return {name: pa.scalar(file.partition_values[name]).cast(types[name]).as_py() for name in self.partition_by}


def _partition(values: Mapping[str, Any]) -> ds.Expression:
    """Return the condition that all rows of a file meet. The dataset takes the values of partition columns from it."""
    each = (ds.field(name).is_null() if value is None else ds.field(name) == value for name, value in values.items())
    return reduce(and_, each, ds.scalar(True))


class ToyTable(SinkDeclaration):
    """The declaration of a toy table, as users pass it to `App.pipeline`."""

    __slots__ = ()

    scheme = "toy"


@dataclass(frozen=True, slots=True)
class ToySink:
    """A `penstock.sinks.sink.TableSink`."""

    root: Files
    pipeline: str
    partition_by: Sequence[str] | None = ()
    history: None = None
    commit_log: None = None

    @property
    def uri(self) -> str:
        return self.root.uri

    def check_location(self) -> None:
        if not self._versions():
            check_free(self.root, kind="toy table")

    def load(self) -> ToySnapshot | None:
        versions = self._versions()
        if not versions:
            check_free(self.root, kind="toy table")
            return None
        document = json.loads(self.root.read(f"{VERSIONS}/{versions[-1]}"))
        check_partitioning(document["partition_by"], self.partition_by, table=self.uri)
        return ToySnapshot(
            root=self.root,
            pipeline=self.pipeline,
            version=int(versions[-1].removesuffix(".json")),
            columns=document["columns"],
            partition_by=document["partition_by"],
            positions={pipeline: Position(**position) for pipeline, position in document["positions"].items()},
            stored=[DataFile(**file) for file in document["files"]],
        )

    def ensure_schema(self, schema: pa.Schema) -> None:
        table = self.load()
        if table is None:
            self._create(schema)
        elif added := encoding.additions(table.schema, schema, table=self.uri):
            table.commit(columns=encoding.encode(pa.schema([*table.schema, *added])))

    def _create(self, schema: pa.Schema) -> None:
        columns = tuple(self.partition_by or ())
        check_new_partitioning(schema, columns, table=self.uri)
        mark_table(self.root)
        empty = ToySnapshot(
            root=self.root, pipeline=self.pipeline, version=-1, columns=encoding.encode(schema), partition_by=columns
        )
        try:
            empty.commit()
        except PublishConflict:  # another process has just created it
            if self.load() is None:
                raise

    def _versions(self) -> Sequence[str]:
        """Return the names of the documents, oldest first, without half-written ones."""
        return [name for name in self.root.names(VERSIONS) if not name.startswith(".")]


TOY = SinkPackage(__name__, "ToySink", "pyarrow", declaration="ToyTable")  # the line that registers the format
