"""Check which Iceberg tables may be written, by an allow-list as for Delta (`penstock.sinks.delta.features`)."""

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata

from penstock.errors import TableError
from penstock.sinks.iceberg.partitioning import fields_of

FORMAT_VERSION = 2  # 1 has no sequence numbers, on which commits rely; 3 has features that an append has to keep


def check_features(metadata: TableMetadata, *, where: str) -> None:
    """Raise `TableError` for the first feature in use that an append would violate."""
    feature = next(_refused(metadata), None)
    if feature is not None:
        raise TableError(
            f"The table {where} uses {feature}, which Penstock does not keep when it writes; remove that from the "
            f"table, or write to another one."
        )


def _refused(metadata: TableMetadata) -> Iterator[str]:
    if metadata.format_version != FORMAT_VERSION:
        yield f"Iceberg's format version {metadata.format_version}"
    if len(metadata.partition_specs) > 1:
        yield "a partitioning that was changed"
    columns = {field.name: field.field_id for field in metadata.schema().fields}
    for found, field in zip(metadata.spec().fields, fields_of(metadata.spec(), metadata.schema()), strict=True):
        if not field.is_known:
            yield f"the partition transform {found.transform} ({found.name})"
        elif columns.get(field.field.source) != found.source_id:
            yield f"a partition field of a nested column ({found.name})"
        elif field.is_identity and field.field.source != found.name:
            yield f"a partition field named otherwise than its column ({found.name})"
        elif not field.is_identity and field.text in columns:
            yield f"a column that is named like the partition field {field.text}"
    if any(key.startswith("encryption.") for key in metadata.properties):
        yield "encryption"
