"""Check which Iceberg tables may be written. An allow-list, as for Delta (`penstock.sinks.delta.features`)."""

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform

from penstock.errors import TableError

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
    for field in metadata.spec().fields:
        if not isinstance(field.transform, IdentityTransform):
            yield f"the partition transform {field.transform} ({field.name})"
        elif metadata.schema().find_column_name(field.source_id) != field.name:
            yield f"a partition field named otherwise than its column ({field.name})"
    if any(key.startswith("encryption.") for key in metadata.properties):
        yield "encryption"
