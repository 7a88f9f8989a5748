"""A table format in one file: a numbered document for each version, which lists all files. It keeps no history.

It shows how little a format needs. `test_new_sink` registers it and publishes to it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.errors import PublishConflict
from penstock.sinks import schema as encoding
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
    version: int
    position: Position
    columns: str
    stored: Sequence[DataFile] = ()
    partition_by: Sequence[str] = ()

    @property
    def schema(self) -> pa.Schema:
        return encoding.decode(self.columns)

    @property
    def schema_document(self) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(self.columns)
        return document

    def files(self) -> Sequence[TableFile]:
        return [TableFile(path=one.path, size_bytes=one.size_bytes, partition_values={}) for one in self.stored]

    def rows(self) -> int | None:
        return sum(file.rows for file in self.stored)

    def dataset(self) -> Any:
        return ds.dataset([f"{self.root}/{file.path}" for file in self.stored], schema=self.schema)

    def append(self, append: Append) -> int:
        position = Position(seq=append.seq, attempt_token=attempt_token(append.attempt_id))
        return self.commit(position=position, stored=(*self.stored, *append.files))

    def commit(self, **changes: Any) -> int:
        after = replace(self, version=self.version + 1, **changes)
        document = {
            "position": asdict(after.position),
            "columns": after.columns,
            "files": [asdict(file) for file in after.stored],
        }
        if not self.root.write_new(f"{VERSIONS}/{after.version:08}.json", json.dumps(document).encode()):
            raise PublishConflict(f"version {after.version} of {self.root} exists")
        return after.version


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

    @property
    def uri(self) -> str:
        return self.root.uri

    def check_location(self) -> None:
        """Accept every location."""

    def load(self) -> ToySnapshot | None:
        names = sorted(self.root.names(VERSIONS))
        if not names:
            return None
        document = json.loads(self.root.read(f"{VERSIONS}/{names[-1]}"))
        return ToySnapshot(
            root=self.root,
            version=int(names[-1].removesuffix(".json")),
            position=Position(**document["position"]),
            columns=document["columns"],
            stored=[DataFile(**file) for file in document["files"]],
        )

    def ensure_schema(self, schema: pa.Schema) -> None:
        start = Position(seq=0, attempt_token=None)
        table = self.load() or ToySnapshot(root=self.root, version=-1, position=start, columns="")
        if table.columns != encoding.encode(schema):
            table.commit(columns=encoding.encode(schema))


TOY = SinkPackage(__name__, "ToySink", "pyarrow", declaration="ToyTable")  # the line that registers the format
