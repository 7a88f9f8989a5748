"""The schema and dialect of a source as the ledger remembers them, with the origin of each column.

Stored in two columns of the ledger: the schema as DDL; format, dialect and origin as JSON. Ledgers written by earlier
versions lack the origin, or both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from penstock.pipeline.spark.source.ddl import format_ddl, parse_ddl, type_text
from penstock.pipeline.spark.source.evidence import ColumnEvidence, evidence_from_json
from penstock.pipeline.spark.source.infer import Inferred
from penstock.pipeline.spark.source.options import ReadOptions, as_text, from_text, is_by_names

COLUMNS_KEPT_MAX = 1_000  # with evidence; a row of the ledger stays below a megabyte
_OBJECTS_KEPT_MAX = 20
_ORIGIN = "origin"


class How(StrEnum):
    """The way in which a schema or column got its present form."""

    INFERRED = "inferred"
    GIVEN = "given"  # with --schema, to an ingest that then worked
    SET = "set"  # with `penstock admin schema set`


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOrigin:
    """The origin of one column. ``at``: epoch seconds."""

    how: How
    at: float
    type: str  # the origin counts only while the column has this type
    evidence: ColumnEvidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a remembered schema."""

    how: How  # of the last change
    at: float  # epoch seconds
    source: str = ""  # address of the objects; empty: unknown
    objects: tuple[str, ...] = ()  # addresses of the sample
    notes: tuple[str, ...] = ()  # of the inference
    dialect: How = How.GIVEN  # of format and dialect
    columns: Mapping[str, ColumnOrigin]  # by name in lower case
    details: tuple[ColumnEvidence, ...] = ()  # of fields inside columns


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedColumn:
    """One column. ``origin`` None: recorded by an earlier version, which kept none."""

    name: str
    type: str
    origin: ColumnOrigin | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A schema and dialect that a ledger remembers. ``origin`` None: recorded by an earlier version."""

    ddl: str
    read: ReadOptions | None  # format and dialect; None: not remembered
    origin: Origin | None
    by_names: bool = False  # the format follows from the names of objects

    @property
    def columns(self) -> Sequence[RememberedColumn]:
        """The columns in order."""
        known = {} if self.origin is None else self.origin.columns
        found = []
        for field in parse_ddl(self.ddl) if self.ddl else ():
            kind = type_text(field.type)
            origin = known.get(field.name.lower())
            fits = origin is not None and origin.type == kind
            found.append(RememberedColumn(name=field.name, type=kind, origin=origin if fits else None))
        return found

    def text(self) -> str | None:
        """Return format, dialect and origin as the ledger keeps them; None if nothing but the schema is known."""
        if self.read is None:
            return None
        stored: dict[str, Any] = json.loads(as_text(self.read, by_names=self.by_names))
        if self.origin is not None:
            stored[_ORIGIN] = asdict(self.origin)
        return json.dumps(stored, separators=(",", ":"))

    def changed(self, ddl: str, read: ReadOptions, *, how: How, at: float, source: str) -> "Remembered":
        """Return the same with another schema or dialect. Columns that stay as they are keep their origin."""
        before = {column.name.lower(): column for column in self.columns}
        columns = {}
        for field in parse_ddl(ddl):
            folded, kind = field.name.lower(), type_text(field.type)
            old = before.get(folded)
            kept = old.origin if old is not None and old.type == kind else None
            columns[folded] = kept or ColumnOrigin(how=how, at=at, type=kind)
        known = self.origin
        same_dialect = known is not None and self.read is not None and as_text(self.read) == as_text(read)
        origin = Origin(
            how=how,
            at=at,
            source=source or (known.source if known is not None else ""),
            objects=known.objects if known is not None else (),
            notes=known.notes if known is not None and same_dialect else (),
            dialect=known.dialect if known is not None and same_dialect else how,
            columns=columns,
            details=tuple(
                one
                for one in (known.details if known is not None else ())
                if columns.get(one.column.partition(".")[0].lower(), _NONE).how is How.INFERRED
            ),
        )
        read = replace(read, schema_ddl=ddl)
        return Remembered(ddl=format_ddl(parse_ddl(ddl)), read=read, origin=origin, by_names=self.by_names)


_NONE = ColumnOrigin(how=How.GIVEN, at=0.0, type="")
NOTHING = Remembered(ddl="", read=None, origin=None)
"""Before the first ingest."""


def remembered_of(ddl: str | None, text: str | None) -> Remembered | None:
    """Return what two columns of a ledger's row hold; None if no schema is recorded."""
    if ddl is None:
        return None
    if text is None:
        return Remembered(ddl=ddl, read=None, origin=None)
    stored: dict[str, Any] = json.loads(text)
    origin = stored.get(_ORIGIN)
    found = None if origin is None else _origin(origin)
    return Remembered(ddl=ddl, read=from_text(text), origin=found, by_names=is_by_names(text))


def inferred_now(
    found: Inferred, *, at: float, source: str, dialect: How = How.INFERRED, by_names: bool = False
) -> Remembered:
    """Return an inference as it is remembered. ``dialect``: the origin of the format's options."""
    columns = {field.name.lower(): type_text(field.type) for field in parse_ddl(found.ddl)}
    evidence = {one.column.lower(): one for one in found.evidence[:COLUMNS_KEPT_MAX]}
    return Remembered(
        ddl=found.ddl,
        read=found.options,
        by_names=by_names,
        origin=Origin(
            how=How.INFERRED,
            at=at,
            source=source,
            objects=tuple(ref.uri for ref in found.sample[:_OBJECTS_KEPT_MAX]),
            notes=found.notes,
            dialect=dialect,
            columns={
                name: ColumnOrigin(how=How.INFERRED, at=at, type=kind, evidence=evidence.get(name))
                for name, kind in columns.items()
            },
            details=tuple(one for name, one in evidence.items() if name not in columns),
        ),
    )


def _origin(fields: Mapping[str, Any]) -> Origin:
    columns = {name: _column(column) for name, column in fields["columns"].items()}
    return Origin(
        how=How(fields["how"]),
        at=fields["at"],
        source=fields["source"],
        objects=tuple(fields["objects"]),
        notes=tuple(fields["notes"]),
        dialect=How(fields["dialect"]),
        columns=columns,
        details=tuple(map(evidence_from_json, fields["details"])),
    )


def _column(fields: Mapping[str, Any]) -> ColumnOrigin:
    evidence = fields["evidence"]
    return ColumnOrigin(
        how=How(fields["how"]),
        at=fields["at"],
        type=fields["type"],
        evidence=None if evidence is None else evidence_from_json(evidence),
    )
