"""The declaration of a Delta table. Imports no deltalake."""

from dataclasses import dataclass, field, replace

from penstock.messaging.declarations import checks_class_options
from penstock.sinks.catalogs.name import CatalogName, catalog_name
from penstock.sinks.declaration import SinkDeclaration
from penstock.sinks.registry import DEFAULT_SCHEME


@checks_class_options("DeltaSink")
@dataclass(frozen=True, slots=True)
class DeltaSink(SinkDeclaration):
    """A Delta table in a folder or at s3://BUCKET/PREFIX, created by the first batch.

    Lines that cannot be read go to ``<table>_quarantine``.

    Args:
        table: The table's folder or prefix.
        partition_by: The partition columns.
        order_by: The columns by which the compaction job orders rows; several: in Z-order.
        register: The entry of the table in a data catalog: glue:DATABASE.TABLE or unity:CATALOG.SCHEMA.TABLE.
    """

    scheme = DEFAULT_SCHEME

    register: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        SinkDeclaration.__post_init__(self)
        if self.register is not None:
            catalog_name(self.register, table=self.address)

    def for_test(self, table: str) -> "DeltaSink":
        """Return the same declaration for another table, which is registered nowhere."""
        return replace(self, table=table, register=None)

    @property
    def catalog_entry(self) -> CatalogName | None:
        """The name under which a data catalog is to list the table; None: it is registered nowhere."""
        return None if self.register is None else catalog_name(self.register, table=self.address)
