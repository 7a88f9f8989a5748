"""The declaration of an Iceberg table. Imports no PyIceberg."""

from dataclasses import dataclass, field, replace

from penstock.messaging.declarations import checks_class_options
from penstock.sinks.catalogs.name import CatalogName, configured_name
from penstock.sinks.declaration import SinkDeclaration


@checks_class_options("IcebergSink")
@dataclass(frozen=True, slots=True)
class IcebergSink(SinkDeclaration):
    """An Iceberg table in a folder or at s3://BUCKET/PREFIX, created by the first batch.

    Lines that cannot be read go to ``<table>_quarantine``.

    Args:
        table: The table's folder or prefix.
        partition_by: The partition fields: columns, or transforms of columns, such as day(ts), bucket(16, user) and
            truncate(4, path).
        order_by: The columns by which the compaction job orders rows; several: in Z-order.
        catalog: The table in a catalog of PyIceberg's configuration, NAME:NAMESPACE.TABLE; default: in no catalog.
    """

    scheme = "iceberg"

    catalog: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        SinkDeclaration.__post_init__(self)
        if self.catalog is not None:
            configured_name(self.catalog)

    def for_test(self, table: str) -> "IcebergSink":
        """Return the same declaration for another table, which is in no catalog."""
        return replace(self, table=table, catalog=None)

    @property
    def metadata_catalog(self) -> CatalogName | None:
        """The name of the table in the catalog that names its newest metadata; None: its folder does."""
        return None if self.catalog is None else configured_name(self.catalog)
